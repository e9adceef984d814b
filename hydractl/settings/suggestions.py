"""What was probably meant by an option or a verb that there is not.

Asked in this order: what has this name no longer, which other verb has it, which name begins alike, which one means the
same, which one has a word in common, and only then which one is spelled alike.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hydractl.settings.verbs import SETTINGS, options_of_verb


class Renamed(NamedTuple):
    """An option that has another name than before.

    Attributes:
        verb: whose option it was.
        old: what it was called, as in its flag.
        new: what it is called now.
        now_of: the verb that has it now; the same one where it is empty.
        value: what it now takes to mean the same; empty where nothing has changed about that.
    """

    verb: str
    old: str
    new: str
    now_of: str = ""
    value: str = ""

    @property
    def holder(self) -> str:
        """The verb that has it now."""
        return self.now_of or self.verb


RENAMED = (
    Renamed("finetune", "data", "train"),
    Renamed("finetune", "members", "ensemble", value="deep:M"),
    Renamed("finetune", "snapshots", "ensemble", value="snapshots:M"),
    Renamed("finetune", "swa", "ensemble", value="swa:START"),
    Renamed("finetune", "swag", "ensemble", value="swag:M"),
    Renamed("finetune", "lora", "ensemble", value="lora:RANK,ALPHA"),
    Renamed("finetune", "batch-ensemble", "ensemble", value="batch-ensemble:STD"),
    Renamed("finetune", "packed", "ensemble", value="packed:M,ALPHA"),
    Renamed("finetune", "mimo", "ensemble", value="mimo:M"),
    Renamed("finetune", "classifiers", "ensemble", value="classifiers:M"),
    Renamed("laplace", "data", "train"),
    Renamed("study", "data", "train"),
    Renamed("study", "budget", "time"),
    Renamed("eval", "data", "test"),
    Renamed("eval", "fit", "train"),
    Renamed("eval", "val-ood", "ood-val"),
    Renamed("eval", "samples", "passes"),
    Renamed("eval", "calibrated", "output", now_of="calibrate"),
    Renamed("eval", "note", "note", now_of="calibrate"),
    Renamed("eval", "report", "html", now_of="report"),
    Renamed("eval", "plots", "plots", now_of="report"),
    Renamed("eval", "card", "card", now_of="report"),
    Renamed("eval", "card-model", "card-model", now_of="report"),
    Renamed("eval", "openood-csv", "openood-csv", now_of="report"),
    Renamed("eval", "over", "over", now_of="report"),
    Renamed("eval", "from", "model", now_of="report"),
    Renamed("bench", "from", "model", now_of="report"),
    Renamed("bench", "plot", "plots", now_of="report"),
    Renamed("extract-circuit", "data", "val"),
    Renamed("extract-circuit", "ood", "ood-val"),
    Renamed("extract-circuit", "weights", "val-weights"),
    Renamed("fuse", "data", "val"),
    Renamed("fuse", "cascade-ood", "ood-val"),
    Renamed("fuse", "export", "format", now_of="export"),
)
"""Old names; one counts as soon as the verb has the new name and no longer the old one."""

GONE = (("extract-circuit", "ensemble-with"), ("extract-circuit", "max-cost"))
"""Verbs and options that did not help, which docs/numbers/joint-circuits.md shows."""

SYNONYMS: Mapping[str, Sequence[str]] = {
    "amount": ("remove", "keep"),
    "amp": ("autocast", "dtype"),
    "bf16": ("dtype",),
    "bs": ("batch-size",),
    "calibration": ("val", "data"),
    "checkpoint": ("model",),
    "criterion": ("method",),
    "cuda": ("device",),
    "dataset": ("data", "test", "train", "val"),
    "debug": ("verbose",),
    "duration": ("time",),
    "figure": ("plots",),
    "fp16": ("dtype",),
    "gpu": ("device", "devices"),
    "gpus": ("devices", "device"),
    "half": ("dtype",),
    "heads": ("keep", "remove"),
    "importance": ("method",),
    "iterations": ("steps", "rounds"),
    "jobs": ("devices", "workers"),
    "l2": ("weight-decay",),
    "learning-rate": ("lr",),
    "max-samples": ("limit",),
    "max-time": ("time", "timeout"),
    "network": ("model",),
    "num-heads": ("keep", "remove"),
    "num-samples": ("samples", "limit"),
    "num-workers": ("workers",),
    "opset": ("format",),
    "outfile": ("output",),
    "overwrite": ("force",),
    "precision": ("dtype",),
    "prune-ratio": ("remove", "keep"),
    "random-state": ("seed",),
    "repetitions": ("rounds", "passes"),
    "silent": ("quiet",),
    "sparsity": ("remove", "keep", "weights"),
    "subset": ("limit",),
    "trials": ("rounds",),
    "wd": ("weight-decay",),
    "yaml": ("config",),
}
"""Words of other tools, each with the options that mean the same, the likeliest first."""

VERB_SYNONYMS: Mapping[str, Sequence[str]] = {
    "average": ("fuse",),
    "bayes": ("laplace",),
    "combine": ("fuse",),
    "compile": ("export",),
    "compress": ("prune",),
    "convert": ("export",),
    "cut": ("prune",),
    "describe": ("--info",),
    "ensemble": ("fuse",),
    "head-selection": ("extract-circuit",),
    "importance": ("score",),
    "info": ("--info",),
    "inspect": ("--info",),
    "join": ("fuse",),
    "ls": ("list",),
    "measure": ("eval", "bench"),
    "merge": ("fuse",),
    "metrics": ("list",),
    "models": ("list",),
    "onnx": ("export",),
    "plot": ("report",),
    "posterior": ("laplace",),
    "profile": ("bench",),
    "publish": ("push",),
    "rank": ("extract-circuit", "score"),
    "search": ("extract-circuit",),
    "show": ("report", "--info"),
    "speed": ("bench",),
    "temperature": ("calibrate",),
    "test": ("eval",),
    "time": ("bench",),
    "train": ("finetune",),
    "upload": ("push",),
    "version": ("--version",),
}
"""Words for what a verb does, each with the verbs, or the options beside them, that do it."""

_BESIDE_VERBS: Mapping[str | None, Sequence[str]] = {
    None: ("help", "version", "info", "install-completion", "show-completion"),
    "--info": ("json", "help"),
}
"""Options of the program itself, and of the command that is no verb."""
_MOST_NAMES = 3
"""Names in one suggestion."""
_SHORTEST_BEGINNING = 2
_SHORTEST_WORD = 3
_ALIKE = 0.65
"""Ratio of difflib from which on two names are spelled alike: of "budget" and "quiet" it is 0.55."""


@dataclass(frozen=True)
class Door:
    """How names are written where an option is given: on the command line, in a file, in the environment, in Python.

    Attributes:
        option: writes the name of an option, given as in its flag, and a value, which may be empty.
        verb: writes the name of a verb.
        negations: whether a switch can also be named with ``no-`` before it.
        lacks: options that cannot be given there.
        needs_flags: whether options without a flag cannot be given there.
    """

    option: Callable[[str, str], str]
    verb: Callable[[str], str]
    negations: bool = False
    lacks: Collection[str] = ()
    needs_flags: bool = False

    def names(self, verb: str | None) -> list[str]:
        """Return the names of the options of a verb, or of all verbs where it is None, as in their flags, each once."""
        verbs = list(SETTINGS)
        if verb is not None:
            verbs = [verb]
        names: list[str] = []
        for known_verb in verbs:
            for option in options_of_verb(known_verb):
                name = option.flag.removeprefix("--")
                lacks_flag = self.needs_flags and option.flagless
                if lacks_flag or name in self.lacks:
                    continue
                names.append(name)
                if self.negations and option.type is bool:
                    names.append(f"no-{name}")
        return list(dict.fromkeys(names))

    def verbs_with(self, name: str) -> list[str]:
        """Return the verbs that have an option of this name."""
        return [verb for verb in SETTINGS if name in self.names(verb)]


def _as_flag(name: str, value: str) -> str:
    """Return ``--name value``."""
    flag = f"--{name} {value}"
    return flag.rstrip()


def _as_key(name: str, value: str) -> str:
    """Return ``'name: value'``, in quotes."""
    text = name.replace("-", "_")
    if value:
        text = f"{text}: {value}"
    return repr(text)


def _as_variable(name: str, value: str) -> str:
    """Return ``HYDRACTL_NAME=value``."""
    key = name.replace("-", "_")
    variable = f"HYDRACTL_{key.upper()}"
    if value:
        return f"{variable}={value}"
    return variable


def _as_command(verb: str) -> str:
    """Return ``hydractl VERB``."""
    return f"hydractl {verb}"


COMMAND_LINE = Door(_as_flag, _as_command, negations=True, needs_flags=True)
YAML_FILE = Door(_as_key, _as_command, lacks=("config",))
ENVIRONMENT = Door(_as_variable, _as_command)


def about_option(name: str, verb: str | None, door: Door) -> str:
    """Return the end of a message about an option that a verb does not have; empty where nothing is near.

    Args:
        name: as it was written, without what all names have there; ``-`` and ``_`` are the same.
        verb: the verb; None where it was given to all verbs.
        door: where it was given.
    """
    name = name.replace("_", "-").lower()

    # It was there once.
    renamed = _find_renamed(name, verb)
    if renamed is not None:
        return _about_renamed(renamed, door)
    if (verb, name) in GONE:
        return "; it is gone: docs/numbers/joint-circuits.md shows that it did not help"

    # It is there, but not for this verb, or not at this door.
    if verb is not None:
        if door.needs_flags and _is_flagless(name, verb):
            return "; it is a key of a recipe or hydra.yaml"
        others = door.verbs_with(name)
        if others:
            return f"; see {door.verb(_listed(others))}"

    # It is near one that is there.
    near_names = nearest(name, door.names(verb), SYNONYMS)
    return _did_you_mean(door.option(near_name, "") for near_name in near_names)


def _about_renamed(renamed: Renamed, door: Door) -> str:
    """Return the end of a message about an option that has another name now, or is one of another verb."""
    new_name = door.option(renamed.new, renamed.value)
    if renamed.new == "model":
        new_name = "an argument"
    where = ""
    if renamed.now_of:
        verb = door.verb(renamed.now_of)
        where = f" of {verb}"
    return f"; it is {new_name}{where} now"


def _is_flagless(name: str, verb: str) -> bool:
    """Return whether a verb has an option of that name without a flag."""
    for option in options_of_verb(verb):
        if option.flag == f"--{name}":
            return option.flagless
    return False


def about_word(word: str, verb: str | None) -> str:
    """Return the end of a message about a word of the command line that means nothing there.

    Args:
        word: a flag, or what stands where a verb is expected.
        verb: the verb that the flag was given to, or ``--info``; None for one of the program itself.
    """
    # In the place of a verb.
    if not word.startswith("-"):
        near_verbs = nearest(word, list(SETTINGS), VERB_SYNONYMS)
        return _did_you_mean(near_verbs)

    # A flag of a verb.
    name = word.removeprefix("--")
    if verb in SETTINGS:
        return about_option(name, verb, COMMAND_LINE) or _did_you_mean_flag(name, ("help",))

    # A flag of the program itself, or of --info.
    meant = _did_you_mean_flag(name, _BESIDE_VERBS[verb])
    if meant:
        return meant
    verbs_with_it = COMMAND_LINE.verbs_with(name)
    if not verbs_with_it:
        return ""
    command = _as_command(_listed(verbs_with_it))
    return f"; see {command}"


def about_key_of_file(key: str) -> str:
    """Return the end of a message about an unknown key at the top of a file of options: an option or a verb."""
    about = about_option(key, None, YAML_FILE)
    if about:
        return about
    verbs = nearest(key.replace("_", "-"), list(SETTINGS), VERB_SYNONYMS)
    return _did_you_mean(repr(verb) for verb in verbs if verb in SETTINGS)


def _did_you_mean_flag(name: str, names: Sequence[str]) -> str:
    """Return the end of a message that suggests the flags nearest to a name; empty where none is near."""
    flags = [_as_flag(near_name, "") for near_name in nearest(name, names, {})]
    return _did_you_mean(flags)


def _find_renamed(name: str, verb: str | None) -> Renamed | None:
    """Return what has become of an option of a verb, or of any verb where it is None; None where it never was one."""
    for renamed in RENAMED:
        is_of_verb = verb is None or verb == renamed.verb
        if renamed.old == name and is_of_verb and is_current(renamed):
            return renamed
    return None


def is_current(renamed: Renamed) -> bool:
    """Return whether a verb has the new name, and the old one no longer."""
    if renamed.holder not in SETTINGS:
        return False
    if renamed.new not in COMMAND_LINE.names(renamed.holder):
        return False
    return renamed.old not in COMMAND_LINE.names(renamed.verb)


# --- names that are near ----------------------------------------------------------------------------------------------


def nearest(word: str, names: Sequence[str], synonyms: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the names nearest to a word, at most three, by the first way that finds some.

    The ways, in this order: names that begin with the word, that mean the same, that have words in common with it,
    with which the word begins, and that are spelled alike.

    Args:
        word: what was written.
        names: what there is.
        synonyms: names by what else they are called; what starts with ``--`` is always there.
    """
    longer_names = _names_that_begin_with(word, names)
    if longer_names:
        return longer_names
    same_meaning = []
    for name in synonyms.get(word, ()):
        if name in names or name.startswith("--"):
            same_meaning.append(name)
    if same_meaning:
        return same_meaning[:_MOST_NAMES]
    names_with_its_words = _names_by_shared_words(word, names)
    if names_with_its_words:
        return names_with_its_words
    beginnings = []
    for name in names:
        is_word = len(name) >= _SHORTEST_WORD
        if is_word and word.startswith(name):
            beginnings.append(name)
    if beginnings:
        longest = max(beginnings, key=len)
        return [longest]
    return difflib.get_close_matches(word, names, n=1, cutoff=_ALIKE)


def _names_that_begin_with(word: str, names: Sequence[str]) -> list[str]:
    """Return the names that begin with a word, whatever their dashes; none for one letter, or where they are many."""
    beginning = word.replace("-", "")
    if len(beginning) < _SHORTEST_BEGINNING:
        return []
    longer_names = []
    for name in names:
        without_dashes = name.replace("-", "")
        if without_dashes.startswith(beginning):
            longer_names.append(name)
    if len(longer_names) > _MOST_NAMES:
        return []
    return longer_names


def _names_by_shared_words(word: str, names: Sequence[str]) -> list[str]:
    """Return the names that have the largest share of words in common with a word such as ``max-samples``.

    The share is that of the words that both have, of those that either has.

    Returns:
        None of them where they are many.
    """
    words = _words_between_dashes(word)
    shares: dict[str, float] = {}
    for name in names:
        words_of_name = _words_between_dashes(name)
        words_of_both = words & words_of_name
        words_of_either = words | words_of_name
        if words_of_both:
            shares[name] = len(words_of_both) / len(words_of_either)
    if not shares:
        return []
    largest_share = max(shares.values())
    nearest_names = [name for name, share in shares.items() if share == largest_share]
    if len(nearest_names) > _MOST_NAMES:
        return []
    return nearest_names


def _words_between_dashes(name: str) -> set[str]:
    """Return the words of a name that are long enough to mean something."""
    parts = name.split("-")
    return {part for part in parts if len(part) >= _SHORTEST_WORD}


def _did_you_mean(names: Iterable[str]) -> str:
    """Return the end of a message that suggests names, as they are written; empty without any."""
    texts = list(names)
    if not texts:
        return ""
    listed = " or ".join(texts)
    return f"; did you mean {listed}?"


def _listed(verbs: Sequence[str]) -> str:
    """Return verbs as a list in words; of many, the first ones."""
    if len(verbs) == 1:
        return verbs[0]
    if len(verbs) > _MOST_NAMES:
        first_ones = ", ".join(verbs[:_MOST_NAMES])
        return f"{first_ones} and others"
    *others, last = verbs
    listed = ", ".join(others)
    return f"{listed} or {last}"
