"""``finetune --ensemble laplace``: add a Laplace approximation over its last linear layers to a model.

Nothing is trained, and every pass then uses it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from hydractl.data import open_data
from hydractl.data.base import PAIRS, Dataset, one_class_warning
from hydractl.data.overlap import GivenSet, left_out_words, trained_on_warning, without_training_data
from hydractl.data.plausibility import sample_warnings
from hydractl.errors import UsageError
from hydractl.files.atomic import Output, file_path
from hydractl.files.checkpoint import with_tensors, write_checkpoint
from hydractl.files.description import CHOSEN_BY_CALIBRATE, provenance
from hydractl.files.fingerprints import entry, merged
from hydractl.files.verb_answers import LaplaceAnswer
from hydractl.log import Log
from hydractl.methods.laplace import LaplaceOptions
from hydractl.methods.laplace.curvature import PRIORS, LaplaceFit, fit_classifier, fit_pairs
from hydractl.model.laplace import KEY, stored_tensors
from hydractl.model.loading import build_model
from hydractl.model.matching import asked_classes
from hydractl.model.runtime import HydraModel
from hydractl.model.source import Source, open_source
from hydractl.training.data import Reader, report_all_cut
from hydractl.verbs.finetune_training import TrainingRequest
from hydractl.verbs.opening import announce_reading, open_named
from hydractl.verbs.outcome import Outcome
from hydractl.verbs.score import model_batches


def fit_posterior(request: TrainingRequest, options: LaplaceOptions, log: Log) -> Outcome:
    """Fit a Laplace approximation to the last linear layers of a model, write the model with it, and return the answer.

    The approximation is a Gaussian over the weights of these layers (the posterior); nothing is trained. Its width
    depends on the curvature of the loss on the training data, and on the precision of a prior. A dry run says what
    would be done.

    Raises:
        UsageError: several models are given, or the model does not end in one linear layer.
    """
    if len(request.models) > 1:
        raise UsageError(f"--ensemble {options} takes one model, got {len(request.models)}")

    # Open the model and the data, and plan. `named` is the model with the class names of the validation data; `samples`
    # is how many samples the curvature counts as, which an option may set.
    source = _without_fitted(open_source(request.models[0], request.opening), log)
    path = file_path(request.output or f"{source.name}.laplace.st")
    data, val, named = _open_data_sets(source, request, log)
    samples = options.counted_samples(len(data), are_pairs=data.kind == PAIRS)
    plan = LaplaceAnswer.partly(
        output=str(path),
        model=source.name,
        arch=source.description.arch,
        members=len(source.description.masks),
        samples=len(data),
        pseudo_data=samples,
    )
    with Output(path, force=request.force) as output:
        if request.dry_run:
            return Outcome(plan.model_copy(update={"dry_run": True, "warnings": log.warnings}))
        announce_reading([source], log)

        # Compute the curvature of each member (a model that is not fused has one). Choose the precision of the prior of
        # each tower (a classifier has one; a model of images and texts has two): as given, by the NLL of the validation
        # data, or by the marginal likelihood.
        model = build_model(source, request.device, request.dtype)
        fits = _fits(model, data, val, named, request, log)
        labels = None if val is None or val.labels is None else torch.from_numpy(val.labels)
        priors = [_prior(member, fit, samples, labels, options, log) for member, fit in enumerate(fits)]
        chosen_by = "given"
        if options.prior is None:
            chosen_by = "marginal likelihood" if val is None else "nll"
        priors_listed = [f"{tower} {prior:g}" for of_member in priors for tower, prior in of_member.items()]
        log.info(f"prior ({chosen_by}): {', '.join(priors_listed)}")

        # Compute the posteriors from both, and store them beside the weights. The choices behind them stand in the
        # header twice: as what the model holds, and in its provenance.
        posteriors = [fit.posteriors(prior, samples) for fit, prior in zip(fits, priors, strict=True)]
        choices = {"prior": priors, "chosen_by": chosen_by, "pseudo_data": samples}
        details = {
            **choices,
            **asked_classes(source, None),
            "dtype": request.dtype,
            "train": data.fingerprint(),
            "val": None if val is None else val.fingerprint(),
        }
        # The data may no longer serve as test data: "seen" lists them, by hashes of their samples.
        entries_of_data = [entry("laplace", "calibration", data)]
        if val is not None:
            entries_of_data.append(entry("laplace", "val", val))
        description = replace(
            source.description,
            extra={**source.description.extra, KEY: {**choices, "samples": len(data)}},
            layout="sliced",
            seen=tuple(merged(source.description.seen, entries_of_data)),
            provenance=provenance("laplace", request.seed, [source.sha256], details, source.lineage),
        )
        tensors = with_tensors(source.tensors, stored_tensors(posteriors))
        digest = write_checkpoint(output, tensors, description.to_json())
    return Outcome(plan.model_copy(update={**choices, "sha256": digest, "warnings": log.warnings}), files=[path])


def _without_fitted(source: Source, log: Log) -> Source:
    """Return the model without an earlier posterior, and without what ``calibrate`` has fitted to its logits.

    What was fitted to the logits, such as a temperature, does not fit the new posterior, which changes the logits: a
    warning in the log names what is left out. An earlier posterior is replaced without a word.
    """
    # Both are entries of the header, which may have other ones.
    stored = source.description.extra
    left_out = [key for key in CHOSEN_BY_CALIBRATE if key in stored]
    if left_out:
        log.warn(f"{source.name}: left out, as fitted to the logits without the posterior: {', '.join(left_out)}")
    extra = {key: value for key, value in stored.items() if key != KEY and key not in left_out}
    return replace(source, description=replace(source.description, extra=extra))


def _prior(
    member: int, fit: LaplaceFit, samples: float, labels: torch.Tensor | None, options: LaplaceOptions, log: Log
) -> dict[str, float]:
    """Return the precision of the prior over the weights, by the name of the tower.

    It is the value in the options, the same for all towers; without one, the best of a range of values for each tower.
    Logs a warning if the best value is the first or last of the range.

    Args:
        member: the index of the member, for the warning.
        fit: the curvature of the member.
        samples: the number of samples that the curvature counts as.
        labels: the labels of the validation data; None if the marginal likelihood chooses.
        options: the options of the method.
        log: receives the warning.
    """
    if options.prior is not None:
        return dict.fromkeys(fit.curvatures, float(options.prior))
    priors = fit.choose_priors(samples, labels)
    meaning_of_ends = {
        PRIORS[0]: "the posterior is as wide as it can be",
        PRIORS[-1]: "hardly any weight is uncertain",
    }
    for tower, prior in priors.items():
        meaning = meaning_of_ends.get(prior)
        if meaning is not None:
            log.warn(f"member {member}, {tower}: the best prior, {prior:g}, is at an end of the range: {meaning}")
    return priors


def _open_data_sets(source: Source, request: TrainingRequest, log: Log) -> tuple[Dataset, Dataset | None, Source]:
    """Return the training data, the validation data, and the model with the class names of the validation data.

    Training data are pairs of image and caption for a model that compares images with texts, and else samples whose
    labels are not read. Validation data are None without ``--val``; they lack the samples that are training data, too.
    What is odd about the data is logged.
    """
    # A model without classes of its own compares images with texts (it has two towers), and trains on pairs.
    needs_pairs = source.family.classes(source.description.config) is None
    data = open_data(
        request.train,
        limit=request.limit,
        seed=request.seed,
        ignore_labels=not needs_pairs,
        reads={source.name: PAIRS if needs_pairs else source.description.reads},
    )
    log.warn_all(sample_warnings(data, in_passing=request.dry_run))
    if request.val is None:
        return data, None, source

    # Validation data, without what is training data, too.
    named, given = open_named(source, request.val, request.limit, request.seed)
    val, left_out = without_training_data(given, data)
    if left_out:
        log.info(left_out_words(val, left_out))
    trained_on = trained_on_warning(source.name, source.description.seen, GivenSet("--val", val))
    log.warn_all([*sample_warnings(val), trained_on, one_class_warning(val)])
    return data, val, named


def _fits(
    model: HydraModel, data: Dataset, val: Dataset | None, named: Source, request: TrainingRequest, log: Log
) -> list[LaplaceFit]:
    """Return the curvature of the loss for the last layers of each member, from one pass over the training data.

    A classifier has one last layer. A model of two towers, which compares images with texts, has two: the projections
    of images and of texts.

    Args:
        model: a classifier, or a model of two towers.
        data: the training data; pairs for a model of two towers.
        val: the validation data that choose the prior; None if there are none.
        named: the source of the model, with its classes named by the validation data.
        request: what the command asks for.
        log: receives warnings about odd data, and the progress.
    """
    report_all_cut(model, [data, val], log)

    # The data, as batches that are read when the fit asks for them. A classifier has one tower ("chains" has one entry
    # for each).
    training = _read(model, data, request, log)
    validation = None if val is None else _read(model, val, request, log)
    if len(model.chains) == 1:
        return fit_classifier(model, training, validation)

    # Two towers: to classify validation images, their features are compared with those of the class names.
    classes = None
    if val is not None:
        classes = model.zero_shot(named.description.labels or [], named.description.prompt)
    return fit_pairs(model, training, validation, classes)


def _read(model: HydraModel, data: Dataset, request: TrainingRequest, log: Log) -> Iterator[Any]:
    """Yield batches on the model's device, in the order of the data, with a progress bar.

    A batch is inputs, or of pairs images and captions.
    """
    if data.kind == PAIRS:
        epoch = 0  # matters only for images that are changed at random, as these are not
        batches = Reader(model, data, request.batch_size, request.workers)(range(len(data)), epoch)
    else:
        batches = (inputs for inputs, _ in model_batches(model, data, request.batch_size, request.workers))
    with log.progress(data.where, len(data), "samples") as progress:
        for start, batch in zip(range(0, len(data), request.batch_size), batches, strict=True):
            yield batch
            progress.advance(min(request.batch_size, len(data) - start))
