"""Check that a model fits what a command asks for: the verb, the heads, the labels, the checkpoint it must come from.

Also check whether models agree in classes and preprocessing, so that they can be averaged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hydractl.data import Dataset, open_data
from hydractl.errors import InputError, UsageError
from hydractl.expressions.data_sets import DataSpec
from hydractl.families import classes_of
from hydractl.families.config_json import Preprocessing
from hydractl.files.description import Description, bases_of
from hydractl.heads.mask import Site
from hydractl.log import Log
from hydractl.model.laplace import KEY
from hydractl.model.source import Source, with_labels

if TYPE_CHECKING:
    from torch import Tensor


def of_one_member(source: Source, verb: str) -> Source:
    """Return the same model, for a verb that takes no fused model.

    Raises:
        InputError: if the model is fused or has a Laplace posterior.
    """
    if source.description.kind == "fused":
        hint = f"{verb} its members before fusing them"
        raise InputError(f"{source.name} is a fused model", hint=hint)
    refuse_posterior([source], verb)
    return source


def refuse_posterior(sources: Sequence[Source], verb: str) -> None:
    """Refuse models with a Laplace posterior: it belongs to the present weights, which the verb would change.

    Raises:
        InputError: naming the first such model.
    """
    for source in sources:
        if KEY in source.description.extra:
            hint = f"{verb} the model it was made of, and then fit --ensemble laplace"
            raise InputError(f"{source.name} has a Laplace posterior, which is of its weights as they are", hint=hint)


def named_by_data(source: Source, spec: DataSpec, limit: int | None) -> Source:
    """Return the source. A zero-shot model without class names gets those of a data set.

    Raises:
        InputError: if the data are needed and have no class names either.
    """
    if source.classes is not None:
        return source
    reads = {source.name: source.description.reads}
    names = open_data(spec, limit=limit, reads=reads).label_names
    if names is None:
        raise InputError(
            f"{source.name} has no classes of its own, and {spec.where} has no class names",
            hint="name the classes with --labels FILE",
        )
    return with_labels(source, names)


def open_labelled(
    spec: DataSpec, source: Source, names: Sequence[str] | None, *, limit: int | None, seed: int
) -> Dataset:
    """Open labelled data that a model reads.

    Args:
        spec: the data.
        source: the model.
        names: the class names in the order that the labels are to have; None: the order of the data. An empty list
            makes the data refuse names instead of matching them by position.
        limit: how many of the samples are used; None for all.
        seed: draws them where they are drawn, from data that are sorted by class.

    Raises:
        InputError: a sample has no label.
    """
    reads = {source.name: source.description.reads}
    return open_data(spec, limit=limit, seed=seed, labels=names, need_labels=True, reads=reads)


def sites_of(source: Source, tower: str | None) -> list[Site]:
    """Return the sites (attention blocks) of one tower (encoder, for images or for texts), or of all towers.

    Args:
        source: the model.
        tower: ``visual``, ``text``, or None or ``both`` for all.

    Raises:
        UsageError: if the model does not have that tower, or ``both`` is asked for and it has one tower.
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
    """Check that a mask, scores or a circuit were made from this model, or from one that shares a base with it.

    A file that does not say from what it was made passes the check. If the two models only share a base, a warning is
    logged.

    Args:
        document: the content of the file.
        origin: the name of the file in messages.
        source: the model.
        allow_other: whether a file that was made from unrelated weights gives only a warning.
        log: receives the warning.

    Raises:
        InputError: if the file was made from unrelated weights and ``allow_other`` is false.
    """
    # The digest of the checkpoint from which the file was made, then of those from which that checkpoint was made.
    made_from: list[str] = bases_of(document.get("source")) if isinstance(document, Mapping) else []
    if not made_from:
        return

    # It is fine if it is the same model, or if one of the two models was made from the other.
    other = made_from[0]
    lineage = source.lineage
    if other in lineage or source.sha256 in made_from:
        return

    # Warn if both were made from a common base. If nothing connects them, the file is refused unless that is allowed.
    short_other = other[:12]
    short_digest = source.sha256[:12]
    message = f"{origin} was made from another checkpoint ({short_other}) than {source.name} ({short_digest})"
    common_bases = [base for base in made_from if base in lineage]
    if common_bases:
        log.warn(f"{message}; both go back to {common_bases[0][:12]}")
    elif allow_other:
        log.warn(message)
    else:
        hint = "make it from this model, or add --allow-other-base to use it all the same"
        raise InputError(message, hint=hint)


def check_labels_are_classes(dataset: Any, model: Any) -> None:
    """Check that all labels of a data set are class indices of a model, also if neither side has class names.

    Args:
        dataset: a data set, or one of an evaluation.
        model: a source whose classes are known, or a row of an evaluation.

    Raises:
        InputError: naming the first sample whose label is too large.
    """
    if dataset.labels is None:
        return
    is_outside = dataset.labels >= model.classes
    if not is_outside.any():
        return
    first = int(is_outside.argmax())
    label = int(dataset.labels[first])
    sample = dataset.ids[first]
    raise InputError(f"label {label} of sample {sample} is outside 0..{model.classes - 1}, the classes of {model.name}")


def known(labels: Tensor | None) -> Tensor:
    """Return the labels of a batch, which exist as the set was opened with ``need_labels``; for the type checker."""
    assert labels is not None
    return labels


def asked_classes(source: Source, tower: str | None) -> dict[str, list[str] | str | None]:
    """Return the part of a result's provenance that says which classes and which tower were used.

    Returns:
        For a zero-shot model ``labels`` and ``prompt`` (None if it has none); ``tower`` if one was asked for.
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
    """Return in words where two ways of preparing samples differ; empty if they agree.

    A long value, such as a tokenizer, is named but not printed.
    """
    differences = []
    keys = dict.fromkeys([*a, *b])  # the keys of both, each once
    for key in keys:
        value_of_a = a.get(key)
        value_of_b = b.get(key)
        if value_of_a == value_of_b:
            continue
        longest = max(len(repr(value_of_a)), len(repr(value_of_b)))
        if longest > _LONGEST_SHOWN:
            differences.append(f"another {key}")
        else:
            differences.append(f"preprocessing {key} {value_of_b!r}, not {value_of_a!r}")
    return differences


def length_hint(problems: Sequence[str]) -> str | None:
    """Return a hint if models differ only in the length at which they cut texts; else None."""
    of_length_alone = all(": preprocessing max_length " in problem for problem in problems)
    return "give all of them one length with --max-length" if problems and of_length_alone else None


def label_differences(a: Sequence[str] | None, b: Sequence[str] | None) -> list[str]:
    """Return in words the first difference between two lists of class names; empty if they agree or one is unknown."""
    if a is None or b is None:
        return []
    if list(a) == list(b):
        return []
    if len(a) != len(b):
        return [f"{len(b)} classes, not {len(a)}"]
    if sorted(a) == sorted(b):
        return ["the same classes in another order"]

    # Find the first class with different names.
    first_other = 0
    while a[first_other] == b[first_other]:
        first_other += 1
    expected = a[first_other]
    actual = b[first_other]
    return [f"class {first_other} is {actual!r}, not {expected!r}"]


def check_agreement(models: Sequence[tuple[str, Description]]) -> None:
    """Check that models can be averaged, by their descriptions alone.

    Args:
        models: the name and the description of each model.

    Raises:
        InputError: listing all differences in labels (names and order), number of classes and preprocessing. A model
            without known labels agrees with any model that has as many classes.
    """
    first_name, first = models[0]

    # The first model with known labels, to which labels are compared; the first model if none has any.
    labelled_name, labelled = next((pair for pair in models if pair[1].labels is not None), models[0])
    problems: list[str] = []
    for name, other in models[1:]:
        compared_with = first_name
        differences = []

        # Compare the number of classes and the preprocessing with the first model. The number is None for a zero-shot
        # model without class names, which takes any number of classes.
        classes = classes_of(first)
        other_classes = classes_of(other)
        both_known = classes is not None and other_classes is not None
        if both_known and classes != other_classes:
            differences.append(f"{other_classes} classes, not {classes}")
        differences += preprocess_differences(first.preprocess, other.preprocess)

        # Compare labels only if nothing else differs, and with a model whose labels are known.
        if not differences and name != labelled_name:
            compared_with = labelled_name
            differences = label_differences(labelled.labels, other.labels)
        problems += [f"{name} against {compared_with}: {difference}" for difference in differences]
    if problems:
        raise InputError("these models cannot be averaged", length_hint(problems), problems)


_LONGEST_SHOWN = 80
"""Values of settings that are longer than this are not printed."""
