"""Whether a model fits what a command asks of it: the verb, the heads, the labels, the checkpoint it is to come from.

And whether models agree in classes and preprocessing, so that they can be averaged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hydractl.data import open_data
from hydractl.errors import InputError, UsageError
from hydractl.families import classes_of
from hydractl.families.config_json import Preprocessing
from hydractl.files.description import Description, bases_of
from hydractl.heads.mask import Site
from hydractl.log import Log
from hydractl.model.laplace import KEY
from hydractl.model.source import Source, with_labels

if TYPE_CHECKING:
    from torch import Tensor


def only_one(sources: list[Source], verb: str) -> Source:
    """Return the one dense or pruned model of a verb that takes no ensemble."""
    if len(sources) != 1:
        raise UsageError(f"{verb} takes one model, got {len(sources)}")
    source = sources[0]
    if source.description.kind == "fused":
        hint = f"{verb} its members before fusing them"
        raise InputError(f"{source.name} is a fused model", hint=hint)
    refuse_posterior(sources, verb)
    return source


def refuse_posterior(sources: Sequence[Source], verb: str) -> None:
    """Refuse models whose Laplace posterior is of the weights as they are, which a verb would change.

    Raises:
        InputError: naming the first of them.
    """
    for source in sources:
        if KEY in source.description.extra:
            hint = f"{verb} the model it was made of, then hydractl laplace"
            raise InputError(f"{source.name} has a Laplace posterior, which is of its weights as they are", hint=hint)


def named_by_data(source: Source, spec: str, limit: int | None, option: str = "--data") -> Source:
    """Return the source; a zero-shot model whose classes have not been named takes the names of a data set.

    Raises:
        InputError: where the data have no class names either.
    """
    if source.classes is not None:
        return source
    reads = {source.name: source.description.reads}
    names = open_data(spec, option=option, limit=limit, reads=reads).label_names
    if names is None:
        raise InputError(
            f"{source.name} has no classes of its own, and {option} {spec} has no class names",
            hint="name the classes with --labels FILE",
        )
    return with_labels(source, names)


def sites_of(source: Source, tower: str | None) -> list[Site]:
    """Return the sites whose heads are meant.

    Args:
        source: the model.
        tower: ``visual``, ``text``, or None or ``both`` for all.

    Raises:
        UsageError: for a tower of a model that has only one.
    """
    sites = source.sites
    if tower is None:
        return sites
    towers = {site.tower for site in sites}
    has_both_towers = len(towers) > 1
    if tower == "both" and has_both_towers:
        return sites
    sites_of_tower = [site for site in sites if site.tower == tower]
    if sites_of_tower:
        return sites_of_tower

    if not has_both_towers:
        raise UsageError(f"--tower {tower}: {source.name} has one tower")
    raise UsageError(f"no tower {tower!r}")


def check_base(document: Any, origin: str, source: Source, *, allow_other: bool, log: Log) -> None:
    """Check whether a mask, scores or a circuit were made from a model, or from one that shares a base with it.

    A file that does not say what it was made from passes.

    Args:
        document: the file, as it was read.
        origin: what to call it in messages.
        source: the model.
        allow_other: whether a file that was made from unrelated weights is only warned of.
        log: receives the warning.

    Raises:
        InputError: it was made from a checkpoint of other weights, and ``allow_other`` is false.
    """
    # The digests of the checkpoint that it was made from, and of those that this one goes back to.
    made_from: list[str] = []
    if isinstance(document, Mapping):
        made_from = bases_of(document.get("source"))
    if not made_from:
        return

    # One of the two goes back to the other.
    other = made_from[0]
    lineage = source.lineage
    model_comes_from_other = other in lineage
    other_comes_from_model = source.sha256 in made_from
    if model_comes_from_other or other_comes_from_model:
        return

    # They are relatives, or nothing is known that they have in common.
    short_other = other[:12]
    short_digest = source.sha256[:12]
    message = f"{origin} was made from another checkpoint ({short_other}) than {source.name} ({short_digest})"
    common_bases = [base for base in made_from if base in lineage]
    if common_bases:
        nearest_base = common_bases[0]
        log.warn(f"{message}; both go back to {nearest_base[:12]}")
    elif allow_other:
        log.warn(message)
    else:
        hint = "make it from this model, or add --allow-other-base to use it all the same"
        raise InputError(message, hint=hint)


def check_labels_are_classes(dataset: Any, source: Source) -> None:
    """Check that the labels of a data set are classes of the model, also where neither side has names.

    Raises:
        InputError: naming the first sample whose label is outside.
    """
    classes = source.classes
    assert classes is not None  # named_by_data() has been here
    labels = dataset.labels
    if labels is None:
        return
    highest = int(labels.max())
    if highest < classes:
        return

    is_outside = labels >= classes
    first = int(is_outside.argmax())
    label = int(labels[first])
    sample = dataset.ids[first]
    raise InputError(f"label {label} of sample {sample} is outside 0..{classes - 1}, the classes of {source.name}")


def known(labels: Tensor | None) -> Tensor:
    """Return the labels of a batch of a data set that was opened with ``need_labels``, for the type checker."""
    assert labels is not None
    return labels


def asked_classes(source: Source, tower: str | None) -> dict[str, list[str] | str | None]:
    """Return what a result's provenance says beside every model's settings.

    Returns:
        ``labels`` and ``prompt`` of a zero-shot model, None where it has none; ``tower`` where one is meant.
    """
    description = source.description
    facts: dict[str, list[str] | str | None] = {}
    is_zero_shot = source.family.classes(description.config) is None
    if is_zero_shot:
        labels = list(description.labels or [])
        prompt = list(description.prompt or [])
        facts["labels"] = labels or None
        facts["prompt"] = prompt or None
    if tower is not None:
        facts["tower"] = tower
    return facts


# --- whether models can be averaged, from their descriptions alone ----------------------------------------------------


def preprocess_differences(a: Preprocessing, b: Preprocessing) -> list[str]:
    """List where two ways of preparing samples differ, in words; a whole tokenizer is not printed."""
    differences = []
    keys = dict.fromkeys([*a, *b])  # each once, in their order
    for key in keys:
        value_of_a = a.get(key)
        value_of_b = b.get(key)
        if value_of_a == value_of_b:
            continue
        in_words = f"preprocessing {key} {value_of_b!r}, not {value_of_a!r}"
        shown_values = (repr(value_of_a), repr(value_of_b))
        longest = max(map(len, shown_values))
        if longest > _LONGEST_SHOWN:
            in_words = f"another {key}"
        differences.append(in_words)
    return differences


def length_hint(problems: Sequence[str]) -> str | None:
    """Suggest what to do where models differ in nothing but the length at which they cut texts; else None."""
    if not problems:
        return None
    for problem in problems:
        if ": preprocessing max_length " not in problem:
            return None
    return "give all of them one length with --max-length"


def label_differences(a: Sequence[str] | None, b: Sequence[str] | None) -> list[str]:
    """List where two lists of class names differ, in words; empty when they agree or one is unknown."""
    if a is None or b is None:
        return []
    if list(a) == list(b):
        return []
    if len(a) != len(b):
        return [f"{len(b)} classes, not {len(a)}"]
    if sorted(a) == sorted(b):
        return ["the same classes in another order"]
    first_other = 0
    while a[first_other] == b[first_other]:
        first_other += 1
    expected = a[first_other]
    actual = b[first_other]
    return [f"class {first_other} is {actual!r}, not {expected!r}"]


def check_agreement(models: Sequence[tuple[str, Description]]) -> None:
    """Check from descriptions alone that models can be averaged.

    Args:
        models: what to call each model, and what it says of itself.

    Raises:
        InputError: listing every difference in labels (names and order), number of classes and preprocessing. A
            model whose labels are unknown agrees with any other of as many classes.
    """
    first_name, first = models[0]
    labelled_name, labelled = _first_with_labels(models)
    problems: list[str] = []
    for name, other in models[1:]:
        compared_with = first_name
        differences = _differences_of_classes_and_preprocessing(first, other)
        # Labels are worth comparing where nothing else differs, and against a model that knows its own.
        if not differences and name != labelled_name:
            compared_with = labelled_name
            differences = label_differences(labelled.labels, other.labels)
        for difference in differences:
            problems.append(f"{name} against {compared_with}: {difference}")
    if problems:
        raise InputError("these models cannot be averaged", length_hint(problems), problems)


def _first_with_labels(models: Sequence[tuple[str, Description]]) -> tuple[str, Description]:
    """Return the first model that knows its labels, for an unknown list would hide a difference; else the first."""
    for name, description in models:
        if description.labels is not None:
            return name, description
    return models[0]


def _differences_of_classes_and_preprocessing(a: Description, b: Description) -> list[str]:
    """List where number of classes and preprocessing differ, in words that tell what ``b`` has instead."""
    differences = []
    classes_of_a = classes_of(a)  # None for a zero-shot model without names, which takes any number
    classes_of_b = classes_of(b)
    both_known = classes_of_a is not None and classes_of_b is not None
    if both_known and classes_of_a != classes_of_b:
        differences.append(f"{classes_of_b} classes, not {classes_of_a}")
    differences += preprocess_differences(a.preprocess, b.preprocess)
    return differences


_LONGEST_SHOWN = 80
"""The longest value of a setting that is printed."""
