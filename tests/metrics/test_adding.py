"""The page on adding a metric, followed to the letter: a metric and a score of somebody else's, a score of our own."""

from __future__ import annotations

import importlib
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hydractl.errors import InputError
from hydractl.metrics import declaration, ood_scores, samples
from hydractl.metrics.bootstrap import draw, resample
from hydractl.metrics.requested import check_ood_score
from hydractl.metrics.rows import row_blocks, row_keys
from hydractl.studies.measured_rows import measure_row
from tests.evaluation.stored import write_predictions
from tests.metrics.arrays import pooled_probabilities
from tests.running import install_beside

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "adding-a-metric.md").read_text(encoding="utf-8")
MODULE, SCORE = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
ENTRY, ENTRY_OF_SCORE = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)

# Commands in a process of their own: documents and tables read the metrics when they are imported.
PROCESS = """
import contextlib, io, json, sys
from hydractl.cli.app import main
ended = []
for command in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(said):
        ended.append((main(command), said.getvalue()))
print(json.dumps(ended))
"""


def install(folder: Path, module: str, entry: str, package: str = "overconfidence") -> None:
    """Leave in a folder a package that is one module."""
    (folder / f"{package}.py").write_text(module, encoding="utf-8")
    install_beside(folder, {"name": package, "version": "1.0", **tomllib.loads(entry)["project"]})


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path; the registry looks anew, before and afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    caches = (declaration.metrics, declaration._declared_by_plugins)
    for cache in caches:
        cache.cache_clear()
    yield tmp_path
    sys.modules.pop("overconfidence", None)
    for cache in caches:
        cache.cache_clear()


def test_rows_keys_and_resamples_follow_from_the_declaration(fresh: Path) -> None:
    install(fresh, MODULE, ENTRY)
    importlib.invalidate_caches()
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(3, 60, 4)) * 2, rng.integers(0, 4, 60)
    inside = samples.samples_of(logits, labels)
    row = row_blocks(inside, {}, {})
    right = inside.predicted == labels
    assert list(row.id.metrics)[-1] == "overconfidence"
    assert row.id.overconfidence == pytest.approx(inside.confidence.mean() - right.mean(), abs=1e-15)
    assert "id.overconfidence" in row_keys([])
    drawn = resample(inside, {}, {}, rounds=5).rounds["id.overconfidence"]
    draws = draw(0, "id", 60)
    for value in drawn:
        rows = np.repeat(np.arange(60), next(draws))
        assert value == pytest.approx(inside.confidence[rows].mean() - right[rows].mean(), abs=1e-15)


def test_what_a_resample_does_not_know_is_repeated() -> None:
    inside = samples.samples_of(np.random.default_rng(1).normal(size=(3, 20, 4)), np.arange(20) % 4)
    counts = next(draw(0, "id", 20))
    rows = np.repeat(np.arange(20), counts)
    drawn = samples.Resample(inside, counts)
    assert np.array_equal(drawn.entropy, inside.entropy[rows])
    assert np.array_equal(drawn.votes, inside.votes[:, rows])


WRONG = {
    "overconfidence = 3": "is no Metric",
    "import nothing_of_that_name": "cannot be imported: ModuleNotFoundError: No module named 'nothing_of_that_name'",
    MODULE.replace("def overconfidence", "def brier") + "overconfidence = brier\n": "the key 'brier' is taken",
}


@pytest.mark.parametrize("module", WRONG, ids=["no metric", "broken", "taken"])
def test_what_is_no_metric_is_refused(module: str, fresh: Path) -> None:
    install(fresh, module, ENTRY)
    importlib.invalidate_caches()
    with pytest.raises(InputError, match=re.escape(WRONG[module])):
        declaration.metrics("id")


@pytest.mark.long
def test_eval_measures_requires_and_shows_it(tmp_path: Path) -> None:
    import subprocess

    from tests.evaluation.stored import write_predictions

    install(tmp_path, MODULE, ENTRY)
    write_predictions(str(tmp_path / "p.st"))
    environment = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}

    def run(*commands: list[str]) -> list[tuple[int, str]]:
        command = [sys.executable, "-c", PROCESS, json.dumps(commands)]
        found = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
        ended: list[tuple[int, str]] = json.loads(found.stdout)
        return ended

    require = ["--require", "id.overconfidence>=2"]
    (code, text), (code_of_page, text_of_page) = run(
        ["eval", "p.st", "--bootstrap", "20", *require, "-o", "e.json"],
        ["report", "e.json", *require, "--html", "r.html"],
    )
    assert code == 4 and "over" in text, text
    assert code_of_page == 4 and "over" in text_of_page, text_of_page
    document: Any = json.loads((tmp_path / "e.json").read_text())
    row = document["models"][0]
    assert row["ci"]["id.overconfidence"][0] <= row["id"]["overconfidence"] <= row["ci"]["id.overconfidence"][1]
    assert "too sure of itself" in document["conventions"]["overconfidence"]
    assert "overconfidence" in (tmp_path / "r.html").read_text()


@pytest.fixture
def fresh_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path; the table of scores looks anew, before and afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    vars(ood_scores.SCORES).pop("_points", None)
    yield tmp_path
    vars(ood_scores.SCORES).pop("_points", None)
    sys.modules.pop("gini", None)


def test_a_score_of_another_package(fresh_scores: Path) -> None:
    install(fresh_scores, SCORE, ENTRY_OF_SCORE, "gini")
    importlib.invalidate_caches()
    assert list(ood_scores.SCORES)[-1] == "gini"
    assert "gini" not in sys.modules  # its name is known before it is imported
    check_ood_score("gini")
    logits = np.random.default_rng(0).normal(size=(3, 50, 4)) * 2
    expected = [1 - sum(p**2 for p in row) for row in pooled_probabilities(logits)]
    assert samples.samples_of(logits, scores=["gini"]).score == pytest.approx(expected, abs=1e-15)


@pytest.mark.fault(112)
@pytest.mark.parametrize("asks", [False, True])
def test_a_score_of_another_package_joins_studies_only_where_it_asks_for_that(asks: bool, fresh_scores: Path) -> None:
    declared = SCORE.replace('p_k^2.")', f'p_k^2.", in_studies={asks})')
    assert declared != SCORE
    install(fresh_scores, declared, ENTRY_OF_SCORE, "gini")
    importlib.invalidate_caches()
    predictions = fresh_scores / "p.st"
    write_predictions(str(predictions))
    assert ("gini" in measure_row(predictions, None).inside.scores) == asks


@pytest.mark.parametrize(
    ("module", "entry", "said"),
    [
        ("gini = 3", ENTRY_OF_SCORE, "'gini' of .* is no OodScore"),
        (SCORE, ENTRY_OF_SCORE.replace("gini =", "msp ="), "offers 'msp' in hydractl.ood_scores, a name that is taken"),
        (SCORE, ENTRY_OF_SCORE.replace("gini =", "knn ="), "offers 'knn' in hydractl.ood_scores, a name that is taken"),
    ],
)
def test_what_is_no_score_is_refused(module: str, entry: str, said: str, fresh_scores: Path) -> None:
    install(fresh_scores, module, entry, "gini")
    importlib.invalidate_caches()
    with pytest.raises(InputError, match=said):
        list(ood_scores.SCORES.values())
