"""``hydractl serve``: one model that answers over HTTP, with the same rows as ``predict``."""

from __future__ import annotations

import contextlib
from importlib.util import find_spec

from hydractl.errors import UsageError, install_hint
from hydractl.evaluation.predicting import predicting_model_record
from hydractl.files.atomic import file_path
from hydractl.files.verb_answers import ServeAnswer
from hydractl.log import Log
from hydractl.metrics.watching import Reference
from hydractl.model.loading import build_model, resolve_device
from hydractl.model.prediction import Chosen
from hydractl.model.source import Source
from hydractl.serving.limits import (
    BYTES_OF_A_KILOBYTE,
    BYTES_OF_A_MEBIBYTE,
    PIXELS_OF_A_MEGAPIXEL,
    ServiceLimits,
)
from hydractl.settings.serving import ServeSettings
from hydractl.verbs.opening import announce_reading
from hydractl.verbs.outcome import Outcome
from hydractl.verbs.predict import REFERENCE_HINT, THRESHOLD_HINT, single_source

_PACKAGES = ("fastapi", "uvicorn", "python_multipart")
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def run(settings: ServeSettings, log: Log) -> Outcome:
    """Serve one model until SIGINT or SIGTERM, which is the normal end.

    Returns:
        How many requests and inputs were answered, and how many of the inputs were flagged as OOD.

    Raises:
        UsageError: a package is missing, or an option has no effect for this model.
    """
    # Check packages, model and options.
    for package in _PACKAGES:
        if find_spec(package) is None:
            raise UsageError(f"serve needs {package}, which is not installed", hint=install_hint(package))
    resolve_device(settings.device)
    source = single_source(settings)
    members = len(source.description.masks)
    chosen = Chosen.of(source.description.extra)
    record = predicting_model_record(source.name, source.sha256, members, chosen)
    windows = None
    if settings.windows is not None:
        windows = file_path(settings.windows)
    limits = _limits(settings)
    if settings.dry_run:
        plan = ServeAnswer(model=record, limits=limits.to_json(), dry_run=True)
        return Outcome(plan.to_json())

    # Imported only here, because a dry run does not need these packages, and they may not be installed.
    from hydractl.serving.server import HttpServer
    from hydractl.serving.service import ModelService
    from hydractl.serving.watching import WindowLog

    # Read the model, and say which of its answers will be missing: flags, and comparisons with a reference.
    if record.threshold is None:
        log.info(f"{source.name} holds no threshold, so no input is flagged; {THRESHOLD_HINT}")
    announce_reading([source], log)
    model = build_model(source, settings.device, settings.dtype)
    model.read_prompts(log, source.name)
    reference = _reference(source, chosen, log)
    if windows is not None and reference is None:
        raise UsageError("--windows has no effect: the model holds no reference", hint=REFERENCE_HINT)

    # Serve.
    service = ModelService(
        model,
        record,
        limits,
        settings.batch_size,
        settings.wait / 1000,  # milliseconds to seconds
        log,
        reference,
        WindowLog(windows, log).add,
    )
    server = HttpServer(service, settings.host, settings.port)
    service.warm_up()
    if settings.host not in _LOOPBACK:
        log.warn(f"whoever reaches {settings.host} can ask: there is no password and no encryption")
    log.info(f"{source.name} is served at {server.url}; Ctrl-C ends it")
    with contextlib.suppress(KeyboardInterrupt):  # raised after the last answer, when a signal has ended the server
        server.run()

    # Return how much was answered.
    flagged = None
    if record.threshold is not None:
        flagged = service.watch.flagged
    answer = ServeAnswer(
        model=record,
        limits=limits.to_json(),
        url=server.url,
        requests=service.counts.requests,
        inputs=service.watch.inputs,
        flagged=flagged,
        windows=service.watch.windows,
        alarms=service.watch.alarms,
    )
    return Outcome(answer.to_json())


def _reference(source: Source, chosen: Chosen, log: Log) -> Reference | None:
    """Return the samples that inputs are compared with; if there are none, log why and return None."""
    reference = chosen.reference
    if reference is None:
        log.info(f"{source.name} holds no reference, so its inputs are counted and not compared; {REFERENCE_HINT}")
        return None
    if not reference.fits(source.description.labels, source.classes or 0):
        log.info(f"{source.name}: its reference was predicted with other classes, so nothing is compared with it")
        return None
    return reference


def _limits(settings: ServeSettings) -> ServiceLimits:
    """Return the limits in bytes and pixels."""
    return ServiceLimits(
        max_body=round(settings.max_body * BYTES_OF_A_MEBIBYTE),
        max_inputs=settings.max_inputs,
        max_pixels=round(settings.max_pixels * PIXELS_OF_A_MEGAPIXEL),
        max_text=round(settings.max_text * BYTES_OF_A_KILOBYTE),
        max_seconds=settings.max_seconds,
        max_requests=settings.queue,
    )
