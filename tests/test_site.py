"""The documentation as a whole: links, the site's navigation, the tutorial and its notebook, quoted messages."""

from __future__ import annotations

import ast
import gzip
import json
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.browsing import BROWSER, browse
from tests.pico import WORDS, publish, stock
from tests.running import read_json, script

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "examples" / "README.md", *sorted(DOCS.rglob("*.md"))]


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def leads_nowhere(page: Path, target: str) -> bool:
    """Whether a link to a file or to a heading is broken; addresses of other sites are not asked."""
    if "://" in target:
        return False
    name, _, anchor = target.partition("#")
    file = (page.parent / name).resolve() if name else page
    if not file.exists():
        return True
    return bool(anchor) and anchor not in anchors(file)


def test_links_lead_somewhere() -> None:
    broken = []
    for page in PAGES:
        targets = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
        broken += [(page.name, target) for target in targets if leads_nowhere(page, target)]
    assert not broken


def test_the_site_shows_every_page() -> None:
    site = yaml.safe_load((DOCS / "site" / "mkdocs.yml").read_text(encoding="utf-8"))

    def pages(entry: Any) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        return [page for part in (entry if isinstance(entry, list) else entry.values()) for page in pages(part)]

    shown = pages(site["nav"])
    there = (page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))
    assert sorted(shown) == sorted(["index.md", "examples.md", "more-methods.md", *there])
    named = re.findall(r"^::: (\S+)", (DOCS / "site" / "api.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert named and all(pkgutil.resolve_name(name) for name in named)


@pytest.mark.long
def test_the_site_builds_without_a_warning_and_is_searched_from_disk(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="the packages of the extra docs are not installed")
    config = str(DOCS / "site" / "mkdocs.yml")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", config, "--site-dir"]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run([*command, str(tmp_path / "site")], env=quiet, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stderr

    page = tmp_path / "site" / "metrics.html"
    loaded = re.findall(r'<(?:script|link|img)\b[^>]*?(?:src|href)="([^"]+)"', page.read_text(encoding="utf-8"))
    outside = [address for address in loaded if "://" in address]
    assert loaded and not outside

    if BROWSER is None:
        return
    results = browse(page, "--dump-dom", "--virtual-time-budget=20000", query="?q=conformal")
    assert re.search(r'md-search-result__item"><a href="file:[^"]*/evaluating\.html', results), results[-2000:]


def test_pages_stay_short_enough_to_be_read() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    first_lines = "\n".join(readme.splitlines()[:66])
    assert len(readme.split()) <= 1_200 and len(re.findall(r"\d+\.\d+", first_lines)) <= 25
    glossary = (DOCS / "concepts.md").read_text(encoding="utf-8").partition("## Glossary\n")[2].partition("\n## ")[0]
    words = re.findall(r"^\| (?!word \|)(?!---)", glossary, flags=re.MULTILINE)
    assert 0 < len(words) <= 20
    pages = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md"]
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in pages) <= 75_000


def texts_of(source: str) -> Iterator[str]:
    """Yield every text of a file of Python, with … for what is filled in."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(v.value) if isinstance(v, ast.Constant) else "…" for v in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_quoted_messages_are_those_of_the_program() -> None:
    messages = re.findall(
        r"^### `(.*)`$", (DOCS / "troubleshooting.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert len(messages) > 20
    patterns = {message: ".*".join(re.escape(part.strip()) for part in message.split("…")) for message in messages}
    sources = [file.read_text(encoding="utf-8") for file in (ROOT / "hydractl").rglob("*.py")]
    beginnings = [max(message.split("…"), key=len).strip()[:20] for message in messages]
    # First those that are likely to hold one: to parse them all takes long.
    sources.sort(key=lambda source: not any(beginning in source for beginning in beginnings))
    for source in sources:
        if not patterns:
            break
        texts = list(texts_of(source))
        for message in [m for m, pattern in patterns.items() if any(re.search(pattern, text) for text in texts)]:
            del patterns[message]
    assert list(patterns) == []


# --- the tutorial -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def make_notebook() -> Any:
    return script(DOCS / "make_notebook.py")


def test_the_notebook_is_current(make_notebook: Any) -> None:
    stored = (DOCS / "tutorial.ipynb").read_text(encoding="utf-8")
    assert stored == make_notebook.text(make_notebook.stored_outputs()), "run: make docs"


def test_the_notebook_has_the_outputs_that_the_page_shows(make_notebook: Any) -> None:
    cells = read_json(DOCS / "tutorial.ipynb")["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    never_run = ["".join(cell["source"]) for cell in code if cell["execution_count"] is None]
    assert not never_run, "run: docs/make_notebook.py --run FOLDER"
    outputs = " ".join(_shown_texts(code)).split()
    for shown in re.findall(r"^```text\n(.*?)^```", make_notebook.PAGE.read_text(encoding="utf-8"), re.M | re.S):
        assert " ".join(shown.split()) in " ".join(outputs)


def _shown_texts(cells: list[dict[str, Any]]) -> Iterator[str]:
    """Yield what cells printed and returned."""
    for cell in cells:
        for output in cell["outputs"]:
            yield "".join(output.get("text", ""))
            yield "".join(output.get("data", {}).get("text/plain", ""))


@pytest.mark.release
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_hydractl: dict[str, str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("minilm-sst2").mkdir()
    publish(stock("bert"), "bert", Path("minilm-sst2"))
    random = np.random.default_rng(0)
    rows = [{"text": " ".join(random.choice(WORDS, 6)), "label": n % 2} for n in range(3300)]
    files = {"sst2_train": rows[:3100], "sst2_test": rows[3100:3200], "agnews_val": rows[3200:3220]}
    files |= {"trec": rows[3220:3240], "customer_reviews": rows[3240:3260]}
    for name, chosen in files.items():
        Path(f"{name}.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, chosen)).encode()))
    scope: dict[str, Any] = {}
    cells = read_json(DOCS / "tutorial.ipynb")["cells"]
    for cell in (cell for cell in cells if cell["cell_type"] == "code"):
        source = "".join(cell["source"])
        # The pico model has 3 heads a site, and random weights pass no gate.
        source = re.sub(
            r">=0\.\d+", ">=0", source.replace("keep=8", "keep=2").replace("max-length 64", "max-length 16")
        )
        source = source.replace("max_length=64", "max_length=16")
        if source.startswith("%%bash\n"):
            subprocess.run(["bash", "-c", source.removeprefix("%%bash\n")], env=with_hydractl, check=True)
        else:
            exec(source, scope)
    assert len(scope["answer"](["a fine film", "so dull !"])) == 2
