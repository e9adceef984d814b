"""The help texts, made from the declarations of the options and the table of verbs."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from hydractl.options.registry import VERBS

if TYPE_CHECKING:
    from hydractl.options.option import Option

_APP_ABOUT = "Prune a transformer into members, fuse them into one ensemble model, and measure the result."

APP_EXAMPLES = """
  # MODEL and data from ./hydra.yaml
  hydractl prune --method taylor --keep 8
  # fuse members
  hydractl fuse a.st b.st c.st -o hydra.st
  # the contents of a file
  hydractl --info hydra.st
"""

_INFO_ABOUT = (
    "Describe files that hydractl writes, from their headers, with a map of the heads; of a fused model also how far "
    "those of its members overlap."
)

INFO_EXAMPLES = """
  # a fused model
  hydractl --info hydra.st
  # for a script
  hydractl --info hydra.st --json
"""

_LEFT = 26
_WIDEST = 100
_NOTE = (
    "A switch is turned off by its --no- form. Every option but --force can also be set by a variable "
    "(HYDRACTL_BATCH_SIZE=8) or in hydra.yaml (batch_size: 8, at the top or under the name of the verb); a flag wins "
    "over a variable, a variable over the file."
)
_SHARED_GROUPS = "Input and output, Running, General"
"""The groups of options that all verbs have. They come in this order, after the groups of the verb."""
_SHORT_EXAMPLES = 4
"""Lines of examples in the short help: two examples with a comment each."""

Row = tuple[str, str]


def app_help(columns: int) -> str:
    """Return ``hydractl --help``."""
    general = [
        ("    --info FILE...", "Describe any file that hydractl writes"),
        ("    --version", "Print the version"),
        ("    --install-completion", "Let the shell complete verbs and options (--show-completion prints how)"),
        ("-h, --help", "Show this help; hydractl VERB -h shows the most used options of a verb, --help all"),
    ]
    verbs = [(name, verb.summary) for name, verb in VERBS.items()]
    sections = {"Verbs": verbs, "Options": general}
    return _page("VERB MODEL... [-o OUTPUT] [options]", _APP_ABOUT, sections, APP_EXAMPLES, columns)


def info_help(columns: int) -> str:
    """Return ``hydractl --info --help``."""
    rows = [
        ("FILE...", "Checkpoints, masks, scores, circuits, results"),
        ("    --json", "Print one JSON document: an object for one FILE, a list for several"),
        ("-h, --help", "Show this help"),
    ]
    return _page("--info FILE... [--json]", _INFO_ABOUT, {"Options": rows}, INFO_EXAMPLES, columns)


def verb_help(name: str, columns: int, *, short: bool = False) -> str:
    """Return ``hydractl VERB --help``, or its short form.

    Args:
        name: the verb.
        columns: the width of the terminal.
        short: whether to return the help of ``-h``: the most used options and the first examples.

    Returns:
        The usage, what the verb does, its options by group, and examples.
    """
    # Imported only here, because ``hydractl --help`` does not need the settings.
    from hydractl.options.verbs import declared

    signature = declared(name)
    verb = VERBS[name]
    # The verb's own groups of options come first, then those that all verbs have, in their order: find() gives the
    # position of a group's name in the text of those, and -1 for any other. Sorting keeps the order within a group.
    groups: dict[str, list[Row]] = {"Arguments": [(signature.model.placeholder(), signature.model.help)]}
    options = sorted(signature.options, key=lambda option: _SHARED_GROUPS.find(option.group))
    listed = [option for option in options if option.label != "MODEL" and not option.flagless]
    usage = f"{name} {verb.usage}"
    about = verb.about or f"{verb.summary}."
    if short:
        often_used = [_option_row(option, short=True) for option in listed if option.often]
        if often_used:
            groups["Most used options"] = often_used
        examples = "\n".join(verb.examples.splitlines()[: 1 + _SHORT_EXAMPLES])  # they begin with an empty line
        examples += f"\n\nall options: hydractl {name} --help\n"
        return _page(usage, about, groups, examples, columns)

    # The whole help: the options for help are no declared options, and come last; a verb may add further lines to any
    # group. A note is on options without a flag.
    for option in listed:
        groups.setdefault(option.group, []).append(_option_row(option, short=False))
    groups[listed[-1].group] += [("-h", "Show the most used options"), ("    --help", "Show this help")]
    for heading, rows in signature.further_help().items():
        groups[heading] += [(f"      {left}", text) for left, text in rows]
    note = _NOTE
    flagless = [option.key for option in options if option.flagless]
    if flagless:
        keys = ", ".join(flagless)
        note += f" {keys} have no flag: they are keys of recipes, of hydra.yaml and of variables."
    return _page(usage, about, groups, verb.examples, columns, note=note)


def _option_row(option: Option, *, short: bool) -> Row:
    """Return the line of help about an option: its flags with a placeholder for the value, and its meaning."""
    short_flag = f"{option.short}, " if option.short else "    "
    left = f"{short_flag}{option.flag} {option.placeholder()}"
    return left.rstrip(), option.described(short=short)


def _page(
    usage: str, about: str, sections: dict[str, list[Row]], examples: str, columns: int, note: str | None = None
) -> str:
    """Return a page of help: usage, what the command does, its options by heading, a note, examples.

    Args:
        usage: how the command is written, without ``hydractl``.
        about: what the command does.
        sections: rows of two columns, by heading.
        examples: commands, which are printed unchanged; empty for no examples.
        columns: the width of the terminal.
        note: a paragraph after the sections; None for no note.
    """
    width = max(60, min(columns, _WIDEST))  # characters a line: as the terminal has, from 60 to 100
    usage_indent = " " * (len("Usage: ") + 2)
    parts = [
        textwrap.fill(f"Usage: hydractl {usage}", width, subsequent_indent=usage_indent, break_on_hyphens=False),
        textwrap.fill(about, width, break_on_hyphens=False),
    ]
    for title, rows in sections.items():
        parts.append(_section(title, rows, width))
    if note is not None:
        parts.append(textwrap.fill(note, width, break_on_hyphens=False))
    if examples:
        parts.append(f"Examples:{examples}")  # not wrapped, so that commands can be copied
    return "\n\n".join(parts)


def _section(title: str, rows: list[Row], width: int) -> str:
    """Return a heading and rows of two columns: an option on the left, its help from character 26 on.

    If an option is too long for the left column, its help begins on the next line.
    """
    lines = [f"{title}:"]
    margin = " " * _LEFT
    for left, right in rows:
        text_lines = textwrap.wrap(right, width - _LEFT, break_on_hyphens=False)
        if len(left) + 4 <= _LEFT:  # it has room beside, with two spaces before it, and at least two after it
            lines.append(f"  {left}".ljust(_LEFT) + text_lines.pop(0))
        else:
            lines.append(f"  {left}")
        lines += [margin + line for line in text_lines]
    return "\n".join(lines)
