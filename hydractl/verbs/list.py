"""``hydractl list``: show what there is to choose from, by reading the registries; entries of plug-ins are included.

Importing this imports neither numpy nor torch. Modules that describe the entries of a kind may need them, and are
imported only when that kind is listed.
"""

from __future__ import annotations

import fnmatch
import pkgutil
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from hydractl.criteria import CRITERIA
from hydractl.errors import UsageError, did_you_mean
from hydractl.expressions.data_sets import CORRUPTIONS, FROST, OOD_SUITES
from hydractl.files.plugins import Registry
from hydractl.files.verb_answers import ListAnswer, ListedEntry
from hydractl.log import Log
from hydractl.methods import METHODS
from hydractl.metrics.declaration import MetricKind, metrics
from hydractl.metrics.ood_scores import OF_UNSIGNED, ON_FEATURES, SCORES
from hydractl.settings.common import FLAG, Common
from hydractl.settings.yaml_files import recipe_about, recipe_names
from hydractl.verbs.outcome import Outcome


@dataclass(kw_only=True)
class Settings(Common):
    """Options of ``list``; ``model`` is the kind and a pattern."""

    verb: ClassVar[str] = "list"
    many_models: ClassVar[bool] = True
    models_called: ClassVar[str] = "[KIND [PATTERN]]"
    models_help: ClassVar[str] = (
        "scores, metrics, methods, criteria, suites, corruptions, recipes or models, and a part of the names to list, "
        "or a pattern with * and ?"
    )
    lacks: ClassVar[tuple[str, ...]] = (
        *("output", "data", "limit", "max_length", "labels", "prompt", "tower", "arch"),
        *("force", "device", "workers", "seed", "dry_run"),
    )

    def settle(self) -> None:
        """Ignore a MODEL that comes from a settings file or an environment variable: it is meant for other commands."""
        if self._rank("model") < FLAG:
            self.model = []

    def _model_problems(self) -> list[str]:
        """Return what is wrong with the kind and the pattern on the command line."""
        if not self.model:
            return []
        kind = self.model[0]
        if kind not in KINDS:
            known_kinds = ", ".join(KINDS)
            guess = did_you_mean(kind, KINDS)
            return [f"list takes one of {known_kinds}, not {kind!r}{guess}"]
        if len(self.model) > 2:
            words = " ".join(self.model)
            return [f"list takes a kind and a pattern, not {words}"]
        return []


class Kind(NamedTuple):
    """One kind of things to choose from.

    Attributes:
        about: what they are, and which option takes their names.
        names: returns all names, without importing what they name.
        entries: yields the entries, given the pattern (which may be empty). It may yield entries that do not fit.
    """

    about: str
    names: Callable[[], Sequence[str]]
    entries: Callable[[str], Iterator[ListedEntry]]


def run(settings: Settings, log: Log) -> Outcome:
    """Return the kinds of things to choose from, or the entries of one kind whose names fit a pattern.

    Raises:
        UsageError: no entry fits the pattern.
    """
    if not settings.model:
        return _outcome(ListAnswer(entries=_kind_entries()))
    kind_name = settings.model[0]
    pattern = ""
    if len(settings.model) > 1:
        pattern = settings.model[1]
    entries = []
    for entry in KINDS[kind_name].entries(pattern):
        if _fits(entry.name, pattern):
            entries.append(entry)
    if pattern and not entries:
        raise UsageError(f"none of the {kind_name} fits {pattern!r}", hint=f"hydractl list {kind_name}")
    return _outcome(ListAnswer(kind=kind_name, entries=entries))


def _kind_entries() -> list[ListedEntry]:
    """Return one entry for each kind, with the number of its names."""
    entries = []
    for name, kind in KINDS.items():
        count = len(kind.names())
        entries.append(ListedEntry(name=name, about=kind.about, count=count))
    return entries


def _outcome(answer: ListAnswer) -> Outcome:
    document = answer.to_json()
    return Outcome({"schema": "hydractl.list/1", **document})


def _fits(name: str, pattern: str) -> bool:
    """Return whether a name contains the pattern or, if the pattern has wildcards, matches all of it; case is ignored.

    A pattern with wildcards may also match only the part after the colon of ``FAMILY:NAME``.
    """
    name = name.lower()
    pattern = pattern.lower()
    if "*" not in pattern and "?" not in pattern:
        return pattern in name
    if fnmatch.fnmatchcase(name, pattern):
        return True
    _, _, model_name = name.partition(":")
    return fnmatch.fnmatchcase(model_name, pattern)


def _first_sentence(text: str | None) -> str:
    """Return the first sentence of a docstring, on one line and without code markup."""
    if text is None:
        return ""
    paragraph, _, _ = text.partition("\n\n")
    line = " ".join(paragraph.split())
    line = line.replace("``", "")
    # Split at a full stop (but not at the last of "...") that comes before a capital letter.
    sentences = re.split(r"(?<=[^.])\. (?=[A-Z])", line)
    return sentences[0].removesuffix(".")


# --- the kinds --------------------------------------------------------------------------------------------------------

_NEEDED_BY_SCORE = {
    "labels": "labelled training data (--train)",
    "data": "training data (--train)",
    "words": "words that name no class (--negative-words)",
    "": "",
}
_NEEDED_BY_METRIC: dict[MetricKind, str] = {
    "id": "labels",
    "ood": "OOD data (--ood)",
    "errors": "labels",
    "diversity": "several members",
}
_LIBRARIES = {"hf": "transformers"}
"""The library of each family whose name differs from that of its library."""


def _score_names() -> list[str]:
    return [*SCORES, *ON_FEATURES]


def _scores(pattern: str) -> Iterator[ListedEntry]:
    """Yield the OOD scores: first those on logits, then those on features."""
    for name, score in SCORES.items():
        about = _without_label(score.convention)
        needs = ""
        if score.of_several:
            needs = "several members"
        yield ListedEntry(name=name, about=about, needs=needs)
    # Imported only here: one of the scores trains a network, so this imports torch.
    feature_scores: Any = pkgutil.resolve_name("hydractl.metrics.feature_scores.scores:FEATURE_SCORES")
    for name, needed in ON_FEATURES.items():
        about = _without_label(feature_scores[name].convention)
        if name in OF_UNSIGNED:
            about += "; made for features that are not negative, as after a ReLU"
        yield ListedEntry(name=name, about=about, needs=_NEEDED_BY_SCORE[needed])


def _without_label(convention: str) -> str:
    """Return the convention of an OOD score without its first words ``OOD score:``."""
    sentence = convention.removeprefix("OOD score: ")
    return sentence.removesuffix(".")


def _metric_names() -> list[str]:
    entries = _metrics("")
    return [entry.name for entry in entries]


def _metrics(pattern: str) -> Iterator[ListedEntry]:
    """Yield what ``eval`` measures, each metric with the data that it needs."""
    for kind, needs in _NEEDED_BY_METRIC.items():
        for metric in metrics(kind):
            about = _first_sentence(metric.convention)
            name = metric.key
            if kind == "errors":
                name = f"errors.{metric.key}"  # metrics of other kinds have the same keys
            yield ListedEntry(name=name, about=about, needs=needs)


def _methods(pattern: str) -> Iterator[ListedEntry]:
    """Yield the ensemble methods."""
    for method in METHODS.all():
        needs = ""
        if any(row.needs_training_data for row in method.rows):
            needs = "training data"
        yield ListedEntry(name=method.name, about=method.about, needs=needs)


def _criteria(pattern: str) -> Iterator[ListedEntry]:
    """Yield the criteria that score heads."""
    for criterion in CRITERIA.all():
        about = _first_sentence(type(criterion).__doc__)
        needs = ""
        if criterion.needs_data:
            needs = "labelled samples (--data)"
        yield ListedEntry(name=criterion.name, about=about, needs=needs)


def _suites(pattern: str) -> Iterator[ListedEntry]:
    """Yield the OOD benchmarks, each with the names and groups of its data sets."""
    suites: Any = pkgutil.resolve_name("hydractl.data.suites:SUITES")
    for name in OOD_SUITES:
        suite = suites[name]
        sets = []
        for member in suite.members:
            if member.group is not None and not member.official:
                sets.append(f"{member.name} ({member.group})")
        names_of_sets = ", ".join(sets)
        about = f"OOD {suite.samples}: {names_of_sets}"
        yield ListedEntry(name=name, about=about, needs="its files (--ood-root)")


def _corruptions(pattern: str) -> Iterator[ListedEntry]:
    """Yield the corruptions of images."""
    table: Any = pkgutil.resolve_name("hydractl.data.corruptions:TABLE")
    for name in CORRUPTIONS:
        about = _first_sentence(table[name].apply.__doc__)
        needs = ""
        if name == FROST:
            needs = "images of frost (--photographs)"
        yield ListedEntry(name=name, about=about, needs=needs)


def _recipes(pattern: str) -> Iterator[ListedEntry]:
    for name in recipe_names():
        about = recipe_about(name)
        yield ListedEntry(name=name, about=about)


def _families() -> Registry[Any]:
    """Return the families; their registry imports numpy."""
    families: Registry[Any] = pkgutil.resolve_name("hydractl.families:FAMILIES")
    return families


def _family_names() -> list[str]:
    return _families().names


def _models(pattern: str) -> Iterator[ListedEntry]:
    """Yield the libraries; with a pattern, import them and yield the models that they know by name."""
    families = _families()
    for family_name in families.names:
        library = _LIBRARIES.get(family_name, family_name)
        if not pattern:
            about = f"Models of {library}, by name or as a folder; list models PATTERN searches the names"
            yield ListedEntry(name=f"{family_name}:NAME", about=about, needs=f"the package {library}")
            continue
        family: Any = families.get(family_name)
        for model_name in family.known_names():
            yield ListedEntry(name=f"{family_name}:{model_name}", about=f"A model of {library} {family.version}")


KINDS: dict[str, Kind] = {
    "scores": Kind("OOD scores: eval --ood-score", _score_names, _scores),
    "metrics": Kind("What eval measures", _metric_names, _metrics),
    "methods": Kind("Ways of getting members", lambda: METHODS.names, _methods),
    "criteria": Kind("Criteria of heads: prune --method", lambda: CRITERIA.names, _criteria),
    "suites": Kind("OOD benchmarks: eval --ood-suite", lambda: OOD_SUITES, _suites),
    "corruptions": Kind("Corruptions of images: eval --corruptions", lambda: CORRUPTIONS, _corruptions),
    "recipes": Kind("Recipes of a training: finetune --recipe", recipe_names, _recipes),
    "models": Kind("Libraries whose models are a MODEL", _family_names, _models),
}
