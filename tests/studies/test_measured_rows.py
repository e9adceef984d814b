"""What a study reads of stored predictions."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hydractl.data import open_data
from hydractl.evaluation.predictions.store import PredictionsWriter
from hydractl.evaluation.sets import EvalSet
from hydractl.studies.measured_rows import measure_row

READ = [0, 1, 3, 4, 6]
"""Of eight samples, those that could be read."""


def test_only_samples_that_were_read_count_and_a_score_on_features_is_the_mean_of_the_members(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    entries, written = [], []
    for name, role, spec in (("id", "id", "builtin:digits/test"), ("far", "ood", "builtin:symbols")):
        data = open_data(spec, limit=8)
        labels = None if data.labels is None else np.asarray(data.labels)
        group = "far" if role == "ood" else None
        entries.append(EvalSet(name, role, group, data.ids, labels, data.fingerprint()))
        written.append((random.normal(size=(2, 5, 10)).astype(np.float32), random.normal(size=(2, 5))))
    labels = entries[0].labels
    assert len(set(labels)) > 3, "else labels could not be mistaken for each other"
    path = tmp_path / "row.pred.st"
    about = {"name": "row", "feature_scores": ["vim"]}
    with PredictionsWriter(path, about, entries, members=2, classes=10, scores=["vim"]) as writer:
        for index, (logits, scores) in enumerate(written):
            writer.write(index, READ, logits, {"vim": scores})

    row = measure_row(path, None)
    assert row.source.members == 2 and row.groups == {"far": "far"}
    assert np.array_equal(row.inside.labels, labels[READ])
    predicted = np.exp(written[0][0].astype(np.float64))
    predicted = (predicted / predicted.sum(axis=-1, keepdims=True)).mean(axis=0).argmax(axis=-1)
    assert row.metrics("vim").id.accuracy == (predicted == labels[READ]).mean()
    for samples, (_, scores) in zip((row.inside, row.outside["far"]), written, strict=True):
        assert np.array_equal(samples.scores["vim"], scores.mean(axis=0))
