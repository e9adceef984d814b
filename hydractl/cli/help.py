"""The help texts, made from the declarations of the options and from the table of verbs."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from hydractl.cli.verbs import APP_ABOUT, APP_EXAMPLES, INFO_ABOUT, INFO_EXAMPLES, VERBS

if TYPE_CHECKING:
    from hydractl.settings.common import Common
    from hydractl.settings.option import Option

_LEFT = 26
_WIDEST = 100
_NOTE = (
    "A switch is turned off by its --no- form. Every option can also be set by a variable (HYDRACTL_BATCH_SIZE=8) "
    "or in hydra.yaml (batch_size: 8, at the top or under the name of the verb); a flag wins over a variable, "
    "a variable over the file."
)

Row = tuple[str, str]


def app_help(columns: int) -> str:
    """``hydractl --help``."""
    verbs = [(name, verb.summary) for name, verb in VERBS.items()]
    general = [
        ("    --info FILE...", "Describe any file that hydractl writes"),
        ("    --version", "Print the version"),
        ("    --install-completion", "Let the shell complete verbs and options (--show-completion prints how)"),
        ("-h, --help", "Show this help; hydractl VERB --help shows that of a verb"),
    ]
    parts = [
        _usage("VERB MODEL... [-o OUTPUT] [options]", columns),
        _wrap(APP_ABOUT, columns),
        _section("Verbs", verbs, columns),
        _section("Options", general, columns),
        _examples(APP_EXAMPLES),
    ]
    return "\n\n".join(parts) + "\n"


def info_help(columns: int) -> str:
    """``hydractl --info --help``."""
    rows = [
        ("FILE...", "Checkpoints, masks, scores, circuits, results"),
        ("    --json", "Print one JSON document: an object for one FILE, a list for several"),
        ("-h, --help", "Show this help"),
    ]
    parts = [
        _usage("--info FILE... [--json]", columns),
        _wrap(INFO_ABOUT, columns),
        _section("Options", rows, columns),
        _examples(INFO_EXAMPLES),
    ]
    return "\n\n".join(parts) + "\n"


def verb_help(name: str, columns: int) -> str:
    """``hydractl VERB --help``: usage, what it does, its options by group, examples."""
    # Here, because building the options of all verbs is a fifth of the time of ``hydractl --help``.
    from hydractl.settings.option import options_of
    from hydractl.settings.verbs import SETTINGS

    verb = VERBS[name]
    groups: dict[str, list[Row]] = {}
    for one in options_of(SETTINGS[name]):
        groups.setdefault(one.group, []).append(_row(one, SETTINGS[name]))
    last = list(groups)[-1]
    groups[last].append(("-h, --help", "Show this help"))
    parts = [_usage(f"{name} {verb.usage}", columns), _wrap(verb.about, columns)]
    parts += [_section(group, rows, columns) for group, rows in groups.items()]
    parts += [_wrap(_NOTE, columns), _examples(verb.examples)]
    return "\n\n".join(parts) + "\n"


def default_text(one: Option) -> str:
    """The built-in value of an option, in words; empty if it has none."""
    if one.default_text is not None:
        return one.default_text
    return "" if one.default is None or one.default == [] else value_text(one.default)


def value_text(value: Any) -> str:
    """A value as one would write it after its flag."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return ",".join(value_text(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _row(one: Option, settings: type[Common]) -> Row:
    if one.name == "model":
        if settings.many_models:
            return "MODEL...", settings.models_help
        return "MODEL", "A checkpoint (.st), a published folder, or timm:NAME"
    left = f"{one.short}, {one.flag}" if one.short else f"    {one.flag}"
    default = default_text(one)
    notes = [note for note in (one.unit, f"default: {default}" if default else None) if note]
    return f"{left} {one.placeholder()}".rstrip(), one.help + (f" [{'; '.join(notes)}]" if notes else "")


def _usage(text: str, columns: int) -> str:
    return textwrap.fill(f"Usage: hydractl {text}", _width(columns), subsequent_indent=" " * 9, break_on_hyphens=False)


def _section(title: str, rows: list[Row], columns: int) -> str:
    """A heading and two columns; a long left side has its right side on the next line."""
    lines = [f"{title}:"]
    for left, right in rows:
        wrapped = textwrap.wrap(right, _width(columns) - _LEFT, break_on_hyphens=False)
        if len(left) + 4 > _LEFT:
            lines.append(f"  {left}")
        else:
            lines.append(f"  {left:<{_LEFT - 2}}{wrapped.pop(0)}")
        lines += [" " * _LEFT + line for line in wrapped]
    return "\n".join(lines)


def _examples(examples: tuple[Row, ...]) -> str:
    lines = ["Examples:"]
    for comment, command in examples:
        lines += [f"  # {comment}", f"  {command}"]  # never wrapped: a command is there to be copied
    return "\n".join(lines)


def _wrap(text: str, columns: int) -> str:
    return textwrap.fill(text, _width(columns), break_on_hyphens=False)


def _width(columns: int) -> int:
    return max(60, min(columns, _WIDEST))
