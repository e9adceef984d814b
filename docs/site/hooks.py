"""What mkdocs needs beside the pages: README.md as the first one, the examples' README, and links between them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "README.md": "index.md",
    "examples/README.md": "examples.md",
    "examples/more_methods/README.md": "more-methods.md",
}
_LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?(\))")
_ROLE = re.compile(r":(?:func|class|meth|data|attr|mod):(?=<code)")


def linked(text: str, folder: Path, up: str = "") -> str:
    """A page with its links as the site has them.

    Args:
        text: of the page.
        folder: where it lies in the repository.
        up: the way from the folder of the page in the site to its top, such as ``../``.
    """

    def link(found: re.Match[str]) -> str:
        target = (folder / found[2]).resolve().relative_to(ROOT).as_posix()
        page = PAGES.get(target, target.removeprefix("docs/"))
        return f"{found[1]}{up}{page}{found[3] or ''}{found[4]}"

    return _LINK.sub(link, text)


def slug(heading: str, _: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def on_config(config: Any) -> Any:
    """Links to headings are the same in the repository and in the site."""
    config.mdx_configs["toc"]["slugify"] = slug
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that lie elsewhere."""
    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=linked(text, (ROOT / source).parent)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links out of docs/ at those pages."""
    if "](../" not in markdown:
        return markdown
    source = page.file.src_uri
    return linked(markdown, (ROOT / "docs" / source).parent, "../" * source.count("/"))


def on_page_content(html: str, **_: Any) -> str:
    """Docstrings name functions in Sphinx's way."""
    return _ROLE.sub("", html)
