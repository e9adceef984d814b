"""Write docs/cli.md from the help texts. A test holds that the file is current."""

from __future__ import annotations

from pathlib import Path

from hydractl.cli.help import app_help, info_help, verb_help
from hydractl.options.registry import VERBS

WIDTH = 110


def text() -> str:
    """The reference page."""
    parts = [
        "# Command line\n\nMade from the help texts by `make docs`: those of `--help`, which show every option.\n`-h` "
        "after a verb shows the most used ones, on one screen.\n"
    ]
    pages = {"hydractl": app_help(WIDTH), **{v: verb_help(v, WIDTH) for v in VERBS}, "--info": info_help(WIDTH)}
    for title, body in pages.items():
        parts.append(f"## {title}\n\n```text\n{body.rstrip()}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    Path(__file__).with_name("cli.md").write_text(text(), encoding="utf-8")
