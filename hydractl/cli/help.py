"""The help texts, made from the declarations of the options and from the table of verbs."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from hydractl.settings.registry import VERBS

if TYPE_CHECKING:
    from hydractl.settings.common import Common
    from hydractl.settings.option import Option

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
    "Describe files that hydractl writes, from their headers, with a map of the heads; of several files of one model "
    "also how far their heads overlap."
)

INFO_EXAMPLES = """
  # a fused model
  hydractl --info hydra.st
  # the overlap of three members
  hydractl --info a.mask.json b.mask.json c.mask.json
  # for a script
  hydractl --info hydra.st --json
"""

_LEFT = 26
_WIDEST = 100
_NOTE = (
    "A switch is turned off by its --no- form. Every option can also be set by a variable (HYDRACTL_BATCH_SIZE=8) "
    "or in hydra.yaml (batch_size: 8, at the top or under the name of the verb); a flag wins over a variable, "
    "a variable over the file."
)
_SHARED_GROUPS = "Input and output, Running, General"
"""The groups that all verbs have: in this order, behind those of the verb."""
_SHORT_EXAMPLES = 4
"""Lines of examples in the short help: two with their comments."""

Row = tuple[str, str]


def app_help(columns: int) -> str:
    """``hydractl --help``."""
    general = [
        ("    --info FILE...", "Describe any file that hydractl writes"),
        ("    --version", "Print the version"),
        ("    --install-completion", "Let the shell complete verbs and options (--show-completion prints how)"),
        ("-h, --help", "Show this help; hydractl VERB -h shows the most used options of a verb, --help all"),
    ]
    sections = {"Verbs": [(name, verb.summary) for name, verb in VERBS.items()], "Options": general}
    return _page("VERB MODEL... [-o OUTPUT] [options]", _APP_ABOUT, sections, APP_EXAMPLES, columns)


def info_help(columns: int) -> str:
    """``hydractl --info --help``."""
    rows = [
        ("FILE...", "Checkpoints, masks, scores, circuits, results"),
        ("    --json", "Print one JSON document: an object for one FILE, a list for several"),
        ("-h, --help", "Show this help"),
    ]
    return _page("--info FILE... [--json]", _INFO_ABOUT, {"Options": rows}, INFO_EXAMPLES, columns)


def verb_help(name: str, columns: int, *, short: bool = False) -> str:
    """``hydractl VERB --help``: usage, what it does, its options by group, examples; ``-h``: what most people need."""
    # Here, because ``hydractl --help`` does without the settings.
    from hydractl.settings.verbs import SETTINGS, options_of_verb

    settings, verb = SETTINGS[name], VERBS[name]
    options = sorted(options_of_verb(name), key=lambda option: _SHARED_GROUPS.find(option.group))
    groups: dict[str, list[Row]] = {"Arguments": [_model_row(settings)]}
    for option in options:
        if option.name == "model" or option.flagless or (short and not option.often):
            continue
        heading = option.group
        if short:
            heading = "Most used options"
        groups.setdefault(heading, []).append(_row(option, short=short))
    usage = f"{name} {verb.usage}"
    about = verb.about or f"{verb.summary}."
    if short:
        first_examples = verb.examples.splitlines()[: 1 + _SHORT_EXAMPLES]
        examples = "\n".join(first_examples)
        return _page(usage, about, groups, f"{examples}\n\nall options: hydractl {name} --help\n", columns)
    groups[options[-1].group] += [("-h", "Show the most used options"), ("    --help", "Show this help")]
    for heading, rows in settings.further_help().items():
        groups[heading] += rows
    note = _NOTE
    flagless = []
    for option in options:
        if option.flagless:
            flagless.append(option.key)
    if flagless:
        note += f" {', '.join(flagless)} have no flag: they are keys of recipes, of hydra.yaml and of variables."
    return _page(usage, about, groups, verb.examples, columns, note=note)


def _model_row(settings: type[Common]) -> Row:
    if settings.many_models:
        return settings.models_called, settings.models_help
    return "MODEL", "A checkpoint (.st), a published folder, or timm:NAME"


def _row(option: Option, *, short: bool) -> Row:
    short_flag = "    "
    if option.short:
        short_flag = f"{option.short}, "
    left = f"{short_flag}{option.flag} {option.placeholder()}"
    return left.rstrip(), option.described(short=short)


def _page(
    usage: str, about: str, sections: dict[str, list[Row]], examples: str, columns: int, note: str | None = None
) -> str:
    width = max(60, min(columns, _WIDEST))
    parts = [
        textwrap.fill(f"Usage: hydractl {usage}", width, subsequent_indent=" " * 9, break_on_hyphens=False),
        textwrap.fill(about, width, break_on_hyphens=False),
    ]
    for title, rows in sections.items():
        parts.append(_section(title, rows, width))
    if note is not None:
        parts.append(textwrap.fill(note, width, break_on_hyphens=False))
    if examples:
        parts.append(f"Examples:{examples}")  # never wrapped: a command is there to be copied
    return "\n\n".join(parts)


def _section(title: str, rows: list[Row], width: int) -> str:
    """A heading and two columns; a long left side has its right side on the next line."""
    lines = [f"{title}:"]
    margin = " " * _LEFT
    for left, right in rows:
        wrapped = textwrap.wrap(right, width - _LEFT, break_on_hyphens=False)
        has_room = len(left) + 4 <= _LEFT
        if has_room:
            first = wrapped.pop(0)
            padded = left.ljust(_LEFT - 2)
            lines.append(f"  {padded}{first}")
        else:
            lines.append(f"  {left}")
        for line in wrapped:
            lines.append(margin + line)
    return "\n".join(lines)
