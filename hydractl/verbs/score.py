"""``hydractl score``: one importance per head, as JSON."""

from __future__ import annotations

from hydractl.criteria.scoring import criterion_of, score_source
from hydractl.files.atomic import Output, check_outputs, file_path, write_json
from hydractl.log import Log
from hydractl.model.matching import only_one
from hydractl.model.source import open_sources
from hydractl.settings import ScoreSettings
from hydractl.verbs.opening import announce_reading, model_options
from hydractl.verbs.outcome import Outcome


def run(settings: ScoreSettings, log: Log) -> Outcome:
    """Score every head of one model."""
    opened = open_sources(settings.model, model_options(settings))
    source = only_one(opened, "score")
    to_stdout = settings.output == "-" or (settings.json and settings.output is None)
    path = file_path(settings.output or f"{source.name}.{settings.method}.scores.json")
    if settings.dry_run:
        check_outputs([] if to_stdout else [path], force=settings.force)
        criterion_of(source, settings)
        plan = {"schema": "hydractl.scores/1", "dry_run": True, "model": source.name, "output": str(path)}
        return Outcome({**plan, "heads": source.description.mask.counts(), "method": settings.method})
    announce_reading([source], log)
    if to_stdout:
        return Outcome(score_source(source, settings, log).to_json(), print_document=True)
    with Output(path, force=settings.force) as output:
        document = score_source(source, settings, log).to_json()
        return Outcome(document, files=[write_json(output, document)])
