"""Suggestions of what was probably meant by an unknown option or verb.

They are looked for in this order: an option that was renamed, another verb that has the option, names that begin alike,
names that mean the same, names that share a word, and at last names that are spelled alike.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hydractl.settings.registry import GONE_VERBS
from hydractl.settings.verbs import SETTINGS, options_of_verb


class Renamed(NamedTuple):
    """An option that had another name before.

    Attributes:
        verb: the verb that had the option.
        old: the old name, as in its flag without dashes before it.
        new: the new name.
        now_of: the verb that has it now; empty if it is the same verb.
        value: the value that means the same now; empty if values have not changed.
    """

    verb: str
    old: str
    new: str
    now_of: str = ""
    value: str = ""

    @property
    def holder(self) -> str:
        """The verb that has the option now."""
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
"""Renamed options. An entry counts only if the verb has the new name and no longer has the old one."""

GONE = (("extract-circuit", "ensemble-with"), ("extract-circuit", "max-cost"))
"""Removed options, each with its verb. They did not help: docs/numbers/joint-circuits.md."""

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
"""Words that other tools use, each with the options that mean the same, the likeliest first."""

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
    "measure": ("eval", "bench"),
    "merge": ("fuse",),
    "onnx": ("export",),
    "plot": ("report",),
    "posterior": ("laplace",),
    "profile": ("bench",),
    "rank": ("extract-circuit", "score"),
    "search": ("extract-circuit",),
    "show": ("report", "--info"),
    "speed": ("bench",),
    "temperature": ("calibrate",),
    "test": ("eval",),
    "time": ("bench",),
    "train": ("finetune",),
    "version": ("--version",),
}
"""Words for what a verb does, each with the verbs that do it, or with options such as ``--info``."""

_BESIDE_VERBS: Mapping[str | None, Sequence[str]] = {
    None: ("help", "version", "info", "install-completion", "show-completion"),
    "--info": ("json", "help"),
}
"""Options of the program itself (None), and of ``--info``, which is a command but no verb."""
_MOST_NAMES = 3
"""The most names in one suggestion."""
_SHORTEST_BEGINNING = 2
_SHORTEST_WORD = 3
_ALIKE = 0.65
"""Two names are spelled alike if their difflib ratio is at least this; that of "budget" and "quiet" is 0.55."""


@dataclass(frozen=True)
class Door:
    """The way in which options are given: on the command line, in a file, in the environment, or in Python.

    Attributes:
        option: writes an option from its name (as in its flag) and a value, which may be empty.
        verb: writes the name of a verb.
        negations: whether a switch can also be given with ``no-`` before it.
        lacks: options that cannot be given there.
        needs_flags: whether options without a flag cannot be given there.
    """

    option: Callable[[str, str], str]
    verb: Callable[[str], str]
    negations: bool = False
    lacks: Collection[str] = ()
    needs_flags: bool = False

    def names(self, verb: str | None) -> list[str]:
        """Return the names, as in their flags, of the options that can be given in this way, each once.

        Args:
            verb: the verb that has the options; None means all verbs.
        """
        verbs = list(SETTINGS)
        if verb is not None:
            verbs = [verb]
        names: list[str] = []
        for known_verb in verbs:
            for option in options_of_verb(known_verb):
                name = option.flag.removeprefix("--")
                # Leave out what cannot be given in this way.
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
    """Return the end of a message about an option that a verb does not have; empty if nothing can be suggested.

    Args:
        name: the unknown name without a prefix such as ``--`` or ``HYDRACTL_``; ``-`` and ``_`` count as the same.
        verb: the verb; None if the option was given to all verbs.
        door: the way in which it was given, e.g. on the command line.
    """
    option_name = name.replace("_", "-").lower()

    # An earlier version had the option.
    renamed = _find_renamed(option_name, verb)
    if renamed is not None:
        return _about_renamed(renamed, door)
    if (verb, option_name) in GONE:
        return "; it is gone: docs/numbers/joint-circuits.md shows that it did not help"

    # The option exists, but it has no flag, or another verb has it.
    if verb is not None:
        if door.needs_flags and _is_flagless(option_name, verb):
            return "; it is a key of a recipe or hydra.yaml"
        others = door.verbs_with(option_name)
        if others:
            return f"; see {door.verb(_listed(others))}"

    # A similar name exists.
    near_names = nearest(option_name, door.names(verb), SYNONYMS)
    return _did_you_mean(door.option(near_name, "") for near_name in near_names)


def _about_renamed(renamed: Renamed, door: Door) -> str:
    """Return the end of a message about an option that has another name now, or belongs to another verb."""
    new_name = door.option(renamed.new, renamed.value)
    if renamed.new == "model":
        new_name = "an argument"
    where = ""
    if renamed.now_of:
        verb = door.verb(renamed.now_of)
        where = f" of {verb}"
    return f"; it is {new_name}{where} now"


def _is_flagless(name: str, verb: str) -> bool:
    """Return whether a verb has an option of this name, and it has no flag."""
    for option in options_of_verb(verb):
        if option.flag == f"--{name}":
            return option.flagless
    return False


def about_word(word: str, verb: str | None) -> str:
    """Return the end of a message about an unknown word of the command line; empty if nothing can be suggested.

    Args:
        word: a flag, or what stands where a verb is expected.
        verb: the verb that the flag was given to, or ``--info``; None if it was given to the program itself.
    """
    # The word stands where a verb is expected.
    if word in GONE_VERBS:
        return f"; it is gone: {GONE_VERBS[word]}"
    if not word.startswith("-"):
        near_verbs = nearest(word, list(SETTINGS), VERB_SYNONYMS)
        return _did_you_mean(near_verbs)

    # The word is a flag after a verb.
    name = word.removeprefix("--")
    if verb in SETTINGS:
        return about_option(name, verb, COMMAND_LINE) or _did_you_mean_flag(name, ("help",))

    # The word is a flag of the program itself, or of --info; or it belongs to a verb.
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
    if key in GONE_VERBS:
        return f"; it is gone: {GONE_VERBS[key]}"
    about = about_option(key, None, YAML_FILE)
    if about:
        return about
    verbs = nearest(key.replace("_", "-"), list(SETTINGS), VERB_SYNONYMS)
    return _did_you_mean(repr(verb) for verb in verbs if verb in SETTINGS)


def _did_you_mean_flag(name: str, names: Sequence[str]) -> str:
    """Return the end of a message that suggests the flags nearest to a name; empty if none is near."""
    flags = [_as_flag(near_name, "") for near_name in nearest(name, names, {})]
    return _did_you_mean(flags)


def _find_renamed(name: str, verb: str | None) -> Renamed | None:
    """Return the entry of a renamed option by its old name; None if it was not renamed.

    Args:
        name: the old name.
        verb: the verb that had it; None means any verb.
    """
    for renamed in RENAMED:
        is_of_verb = verb is None or verb == renamed.verb
        if renamed.old == name and is_of_verb and is_current(renamed):
            return renamed
    return None


def is_current(renamed: Renamed) -> bool:
    """Return whether an entry of :data:`RENAMED` counts: the new name exists, and the old one no longer does."""
    if renamed.holder not in SETTINGS:
        return False
    if renamed.new not in COMMAND_LINE.names(renamed.holder):
        return False
    return renamed.old not in COMMAND_LINE.names(renamed.verb)


# --- names that are near ----------------------------------------------------------------------------------------------


def nearest(word: str, names: Sequence[str], synonyms: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the names nearest to a word, at most three; empty if none is near.

    Five ways are tried in turn, and the first that finds names decides: names that begin with the word; names that mean
    the same; names that share words with it; the longest name with which the word begins; the name spelled most alike.

    Args:
        word: what was written.
        names: the existing names.
        synonyms: for other words, the names that mean the same; a name that starts with ``--`` always exists.
    """
    # Names that begin with the word.
    longer_names = _names_that_begin_with(word, names)
    if longer_names:
        return longer_names

    # Names that mean the same.
    same_meaning = []
    for name in synonyms.get(word, ()):
        if name in names or name.startswith("--"):
            same_meaning.append(name)
    if same_meaning:
        return same_meaning[:_MOST_NAMES]

    # Names that share words with it.
    names_with_its_words = _names_by_shared_words(word, names)
    if names_with_its_words:
        return names_with_its_words

    # Names with which the word begins, such as "device" of "devicename".
    beginnings = []
    for name in names:
        is_word = len(name) >= _SHORTEST_WORD
        if is_word and word.startswith(name):
            beginnings.append(name)
    if beginnings:
        longest = max(beginnings, key=len)
        return [longest]

    # The name that is spelled most alike.
    return difflib.get_close_matches(word, names, n=1, cutoff=_ALIKE)


def _names_that_begin_with(word: str, names: Sequence[str]) -> list[str]:
    """Return the names that begin with a word, whatever their dashes; none for one letter, or if they are many."""
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
    """Return the names that share most words with a word such as ``max-samples``; empty if none does, or many do.

    Names are compared by the number of shared words, divided by the number of distinct words of both.

    Args:
        word: what was written.
        names: the existing names.
    """
    words = _words_between_dashes(word)
    shares: dict[str, float] = {}
    for name in names:
        words_of_name = _words_between_dashes(name)
        shared_words = words & words_of_name
        all_words = words | words_of_name
        if shared_words:
            shares[name] = len(shared_words) / len(all_words)
    if not shares:
        return []
    largest_share = max(shares.values())
    nearest_names = [name for name, share in shares.items() if share == largest_share]
    if len(nearest_names) > _MOST_NAMES:
        return []
    return nearest_names


def _words_between_dashes(name: str) -> set[str]:
    """Return the words of a name, without those of one or two letters."""
    parts = name.split("-")
    return {part for part in parts if len(part) >= _SHORTEST_WORD}


def _did_you_mean(names: Iterable[str]) -> str:
    """Return the end of a message that suggests names, as they are written; empty if there are none."""
    texts = list(names)
    if not texts:
        return ""
    listed = " or ".join(texts)
    return f"; did you mean {listed}?"


def _listed(verbs: Sequence[str]) -> str:
    """Return verbs as a list in words, e.g. ``a, b or c``; of more than three verbs only the first three."""
    if len(verbs) == 1:
        return verbs[0]
    if len(verbs) > _MOST_NAMES:
        first_ones = ", ".join(verbs[:_MOST_NAMES])
        return f"{first_ones} and others"
    *others, last = verbs
    listed = ", ".join(others)
    return f"{listed} or {last}"
