"""Whether a model fits what a command asks of it: the verb, the heads, the labels, the checkpoint it is to come from.

And whether models agree in classes and preprocessing, so that they can be averaged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hydractl.data import open_data
from hydractl.errors import InputError, UsageError
from hydractl.families import classes_of
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
        raise InputError(f"{source.name} is a fused model", hint=f"{verb} its members before fusing them")
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
    towers = {site.tower for site in sites}
    if tower is None or (tower == "both" and len(towers) > 1):
        return sites
    if tower in towers:
        return [site for site in sites if site.tower == tower]
    if len(towers) == 1:
        raise UsageError(f"--tower {tower}: {source.name} has one tower")
    raise UsageError(f"no tower {tower!r}")


def check_base(document: Any, origin: str, source: Source, *, allow_other: bool, log: Log) -> None:
    """Check whether a mask, scores or a circuit were made from a model, or from one that shares a base with it.

    A file that does not say what it was made from passes.

    Raises:
        InputError: it was made from a checkpoint of other weights, and ``allow_other`` is false.
    """
    made_from = bases_of(document.get("source")) if isinstance(document, Mapping) else []
    if not made_from:
        return
    lineage = source.lineage
    model_comes_from_it = made_from[0] in lineage
    it_comes_from_model = source.sha256 in made_from
    if model_comes_from_it or it_comes_from_model:
        return
    other = made_from[0]
    message = f"{origin} was made from another checkpoint ({other[:12]}) than {source.name} ({source.sha256[:12]})"
    common_bases = [base for base in made_from if base in lineage]
    if common_bases:
        log.warn(f"{message}; both go back to {common_bases[0][:12]}")
    elif allow_other:
        log.warn(message)
    else:
        hint = "make it from this model, or add --allow-other-base to use it all the same"
        raise InputError(message, hint=hint)


def check_labels_are_classes(dataset: Any, source: Source) -> None:
    """Check that labels are classes of the model, also where neither side has names.

    Raises:
        InputError: naming the first sample that is outside.
    """
    classes = source.classes
    assert classes is not None  # named_by_data() has been here
    if dataset.labels is None or int(dataset.labels.max()) < classes:
        return
    first = int((dataset.labels >= classes).argmax())
    label = int(dataset.labels[first])
    raise InputError(
        f"label {label} of sample {dataset.ids[first]} is outside 0..{classes - 1}, the classes of {source.name}"
    )


def known(labels: Tensor | None) -> Tensor:
    """Return the labels of a batch of a data set that was opened with ``need_labels``, for the type checker."""
    assert labels is not None
    return labels


def asked_classes(source: Source, tower: str | None) -> dict[str, Any]:
    """Return what a result's provenance says beside every model's settings: prompts, their labels and the tower."""
    description = source.description
    facts: dict[str, Any] = {}
    if source.family.classes(description.config) is None:
        facts["labels"] = list(description.labels or ()) or None
        facts["prompt"] = list(description.prompt or ()) or None
    if tower is not None:
        facts["tower"] = tower
    return facts


# --- whether models can be averaged, from their descriptions alone ----------------------------------------------------


def preprocess_differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """List where two ways of preparing samples differ, in words; a whole tokenizer is not printed."""
    differences = []
    for key in dict.fromkeys([*a, *b]):
        if a.get(key) == b.get(key):
            continue
        first = repr(a.get(key))
        second = repr(b.get(key))
        if max(len(first), len(second)) <= _SHORT:
            differences.append(f"preprocessing {key} {second}, not {first}")
        else:
            differences.append(f"another {key}")
    return differences


def length_hint(problems: Sequence[str]) -> str | None:
    """Suggest what to do where models differ in nothing but the length at which they cut texts; else None."""
    if not problems:
        return None
    if all(": preprocessing max_length " in problem for problem in problems):
        return "give all of them one length with --max-length"
    return None


def label_differences(a: Sequence[str] | None, b: Sequence[str] | None) -> list[str]:
    """List where two lists of class names differ, in words; empty when they agree or one is unknown."""
    if a is None or b is None or list(a) == list(b):
        return []
    if len(a) != len(b):
        return [f"{len(b)} classes, not {len(a)}"]
    if sorted(a) == sorted(b):
        return ["the same classes in another order"]
    index = 0
    while a[index] == b[index]:
        index += 1
    return [f"class {index} is {b[index]!r}, not {a[index]!r}"]


def check_agreement(models: Sequence[tuple[str, Description]]) -> None:
    """Check from descriptions alone that models can be averaged.

    Args:
        models: what to call each model, and what it says of itself.

    Raises:
        InputError: listing every difference in labels (names and order), number of classes and preprocessing. A
            model whose labels are unknown agrees with any other of as many classes.
    """
    first_name, first = models[0]
    # Labels are compared with the first model that knows its own: an unknown list would hide a difference.
    models_with_labels = [model for model in models if model[1].labels is not None]
    labelled_name, labelled = models_with_labels[0] if models_with_labels else models[0]
    problems: list[str] = []
    for name, other in models[1:]:
        differences = _differences(first, other)
        problems += [f"{name} against {first_name}: {difference}" for difference in differences]
        if not differences and name != labelled_name:
            differences_in_labels = label_differences(labelled.labels, other.labels)
            problems += [f"{name} against {labelled_name}: {difference}" for difference in differences_in_labels]
    if problems:
        raise InputError("these models cannot be averaged", length_hint(problems), problems)


def _differences(a: Description, b: Description) -> list[str]:
    """List where number of classes and preprocessing differ."""
    differences = []
    classes_of_a = classes_of(a)
    classes_of_b = classes_of(b)
    both_known = classes_of_a is not None and classes_of_b is not None
    if both_known and classes_of_a != classes_of_b:
        differences.append(f"{classes_of_b} classes, not {classes_of_a}")
    return differences + preprocess_differences(a.preprocess, b.preprocess)


_SHORT = 80
"""The longest value of a setting that is printed."""
