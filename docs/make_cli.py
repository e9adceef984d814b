"""Write docs/cli.md from the help texts, options of several verbs once. A test holds that the file is current."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from hydractl.cli.help import app_help, info_help, verb_help
from hydractl.options.registry import VERBS

WIDTH = 110
SHARED_BY = 2
"""An option with the same text in so many verbs stands under "Shared options" alone."""

_ENTRY = re.compile(r"^ {2,8}-\S.*\n(?: {24,}\S.*\n)*", re.MULTILINE)
_NOTE = re.compile(r"^A switch is turned off .*?\n\n", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^[A-Z][^\n:]*:\n(?=\n|\Z)", re.MULTILINE)
_FLAG = re.compile(r"(?:-\w, )?(--?[\w-]+)")
_EXAMPLES = re.compile(r"\nExamples:\n.*", re.DOTALL)
"""They end a help text; the pages of docs have commands enough."""


def text() -> str:
    """The reference page."""
    helps = {verb: verb_help(verb, WIDTH) + "\n" for verb in VERBS}
    counts = Counter(entry for page in helps.values() for entry in _ENTRY.findall(page))
    of_all = [entry for entry, count in counts.items() if count == len(VERBS)]
    of_several = [entry for entry, count in counts.items() if SHARED_BY <= count < len(VERBS)]
    note = _NOTE.findall(helps["score"])[0]
    parts = [
        "# Command line\n\n"
        "Made from the help texts by `make docs`. `hydractl VERB --help` shows every option of a verb, and examples,\n"
        "`-h` the most used ones. Options that several verbs have with the same meaning stand "
        "[here once](#shared-options).\n",
        _section("hydractl", app_help(WIDTH)),
        _section("Shared options", f"{note}Of all verbs:\n{''.join(of_all)}\nOf several verbs:\n{''.join(of_several)}"),
    ]
    for verb, page in helps.items():
        parts.append(_section(verb, _without(page, [*of_all, *of_several]), _names(page, of_several)))
    parts.append(_section("--info", info_help(WIDTH)))
    return "\n".join(parts)


def _without(page: str, shared: list[str]) -> str:
    """Return the help of a verb without the shared options, headings that are empty then, and the note."""
    for entry in shared:
        page = page.replace(entry, "")
    page = _HEADING.sub("", _NOTE.sub("", page))
    return re.sub(r"\n{3,}", "\n\n", page)


def _names(page: str, shared: list[str]) -> str:
    """Return a line with those shared options that a verb has."""
    flags = [match[1] for entry in shared if entry in page and (match := _FLAG.search(entry))]
    return f"\nAnd: `{' '.join(flags)}`\n" if flags else ""


def _section(title: str, body: str, below: str = "") -> str:
    """Return a section of the page: a heading, and a text as the terminal shows it, without its examples."""
    return f"## {title}\n\n```text\n{_EXAMPLES.sub('', body).rstrip()}\n```\n{below}"


if __name__ == "__main__":
    Path(__file__).with_name("cli.md").write_text(text(), encoding="utf-8")
