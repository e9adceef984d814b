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
        """Return the names of the options of a verb, or of all verbs, as in their flags."""
        names: list[str] = []
        for known_verb in [verb] if verb is not None else SETTINGS:
            for option in options_of_verb(known_verb):
                name = option.flag.removeprefix("--")
                if name in self.lacks or (option.flagless and self.needs_flags):
                    continue
                names.append(name)
                if self.negations and option.type is bool:
                    names.append(f"no-{name}")
        return list(dict.fromkeys(names))

    def verbs_with(self, name: str) -> list[str]:
        """Return the verbs that have an option."""
        verbs = []
        for verb in SETTINGS:
            if name in self.names(verb):
                verbs.append(verb)
        return verbs


def _as_flag(name: str, value: str) -> str:
    flag = f"--{name} {value}"
    return flag.rstrip()


def _as_key(name: str, value: str) -> str:
    text = name.replace("-", "_")
    if value:
        text = f"{text}: {value}"
    return repr(text)


def _as_variable(name: str, value: str) -> str:
    variable = f"HYDRACTL_{name.replace('-', '_').upper()}"
    if value:
        return f"{variable}={value}"
    return variable


def _as_command(verb: str) -> str:
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
    renamed = _renamed(name, verb)
    if renamed is not None:
        where = ""
        if renamed.now_of:
            where = f" of {door.verb(renamed.now_of)}"
        new_name = door.option(renamed.new, renamed.value)
        if renamed.new == "model":
            new_name = "an argument"
        return f"; it is {new_name}{where} now"
    if (verb, name) in GONE:
        return "; it is gone: docs/numbers/joint-circuits.md shows that it did not help"
    if verb is not None and door.needs_flags and _is_flagless(name, verb):
        return "; it is a key of a recipe or hydra.yaml"
    others = door.verbs_with(name)
    if verb is not None and others:
        return f"; see {door.verb(_listed(others))}"
    return _did_you_mean(door.option(near, "") for near in nearest(name, door.names(verb), SYNONYMS))


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
    if not word.startswith("-"):
        return _did_you_mean(nearest(word, list(SETTINGS), VERB_SYNONYMS))
    name = word.removeprefix("--")
    if verb in SETTINGS:
        return about_option(name, verb, COMMAND_LINE) or _did_you_mean_flag(name, ("help",))
    meant = _did_you_mean_flag(name, _BESIDE_VERBS[verb])
    if meant:
        return meant
    others = COMMAND_LINE.verbs_with(name)
    if not others:
        return ""
    return f"; see {_as_command(_listed(others))}"


def about_key_of_file(key: str) -> str:
    """Return the end of a message about an unknown key at the top of a file of options: an option or a verb."""
    about = about_option(key, None, YAML_FILE)
    if about:
        return about
    verbs = nearest(key.replace("_", "-"), list(SETTINGS), VERB_SYNONYMS)
    return _did_you_mean(repr(verb) for verb in verbs if verb in SETTINGS)


def _did_you_mean_flag(name: str, names: Sequence[str]) -> str:
    flags = []
    for near in nearest(name, names, {}):
        flags.append(_as_flag(near, ""))
    return _did_you_mean(flags)


def _renamed(name: str, verb: str | None) -> Renamed | None:
    """Return what has become of an option of a verb, or of any verb; None where it never was one."""
    for renamed in RENAMED:
        if renamed.old != name or verb not in (None, renamed.verb):
            continue
        if is_current(renamed):
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

    Args:
        word: what was written.
        names: what there is.
        synonyms: names by what else they are called; what starts with ``--`` is always there.
    """
    longer = _longer(word, names)
    if longer:
        return longer
    same_meaning = []
    for name in synonyms.get(word, ()):
        if name in names or name.startswith("--"):
            same_meaning.append(name)
    if same_meaning:
        return same_meaning[:_MOST_NAMES]
    sharing = _by_shared_words(word, names)
    if sharing:
        return sharing
    shorter = []
    for name in names:
        if len(name) >= _SHORTEST_WORD and word.startswith(name):
            shorter.append(name)
    if shorter:
        return [max(shorter, key=len)]
    return difflib.get_close_matches(word, names, n=1, cutoff=_ALIKE)


def _longer(word: str, names: Sequence[str]) -> list[str]:
    """Return the names that begin with the word, where those are few; dashes do not count."""
    beginning = word.replace("-", "")
    if len(beginning) < _SHORTEST_BEGINNING:
        return []
    longer = [name for name in names if name.replace("-", "").startswith(beginning)]
    if len(longer) > _MOST_NAMES:
        return []
    return longer


def _by_shared_words(word: str, names: Sequence[str]) -> list[str]:
    """Return the names with the largest share of words in common, where those are few."""
    words = _words(word)
    shares: dict[str, float] = {}
    for name in names:
        words_of_name = _words(name)
        common = words & words_of_name
        if common:
            shares[name] = len(common) / len(words | words_of_name)
    if not shares:
        return []
    largest = max(shares.values())
    nearest_names = [name for name, share in shares.items() if share == largest]
    if len(nearest_names) > _MOST_NAMES:
        return []
    return nearest_names


def _words(name: str) -> set[str]:
    words = set()
    for part in name.split("-"):
        if len(part) >= _SHORTEST_WORD:
            words.add(part)
    return words


def _did_you_mean(names: Iterable[str]) -> str:
    texts = list(names)
    if not texts:
        return ""
    return f"; did you mean {' or '.join(texts)}?"


def _listed(verbs: Sequence[str]) -> str:
    """Return verbs as a list in words; of many, the first ones."""
    if len(verbs) == 1:
        return verbs[0]
    if len(verbs) > _MOST_NAMES:
        first_ones = ", ".join(verbs[:_MOST_NAMES])
        return f"{first_ones} and others"
    *others, last = verbs
    return f"{', '.join(others)} or {last}"
