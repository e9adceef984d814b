"""``hydractl serve``: over real HTTP the answers of ``model.predict``, however requests come together."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import hydractl
from hydractl.evaluation.predicting import LineForm, prediction_rows
from hydractl.metrics import watching
from hydractl.metrics.watching import reference_of
from hydractl.model.runtime import HydraModel
from tests.forked import ForkedPopen
from tests.running import run
from tests.served import JSON, PNG, Reply, Served, form, picture, served

STARTED = [sys.executable, "-c", "", ""]
"""What stands before the words of a command that hydractl starts; it is forked instead."""


def rows_of_model(path: Path, samples: list[Any], form: LineForm | None = None) -> list[dict[str, Any]]:
    """What the model says of samples when they are one batch, as rows."""
    model = hydractl.load(path, device="cpu")
    ids = [str(number) for number in range(len(samples))]
    prediction = model.predict(model.preprocess(samples))
    return prediction_rows(prediction, ids, [None] * len(samples), form or LineForm())


def assert_same(rows: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """The same keys in the same order, words equal, numbers but for the shape of a batch."""
    assert len(rows) == len(expected)
    for row, other in zip(rows, expected, strict=True):
        assert list(row) == list(other)
        for key, value in other.items():
            same = pytest.approx(value, abs=1e-5) if isinstance(value, float) else value
            if key in ("top", "members"):
                assert [entry.keys() for entry in row[key]] == [entry.keys() for entry in value]
                for mine, theirs in zip(row[key], value, strict=True):
                    assert list(mine.values()) == [
                        pytest.approx(item, abs=1e-5) if isinstance(item, float) else item for item in theirs.values()
                    ]
            else:
                assert row[key] == same, key


def opened(file: bytes) -> Image.Image:
    return Image.open(io.BytesIO(file))


@contextmanager
def predicting(service: Served, predict: Callable[[Callable[[Any], Any], Any], Any]) -> Iterator[None]:
    """Let another function stand before the model's own, which it is given beside the inputs."""
    model: Any = service.service.model
    model.predict = lambda inputs: predict(lambda inputs: HydraModel.predict(model, inputs), inputs)
    try:
        yield
    finally:
        del model.predict


def together(tasks: list[Callable[[], Reply]]) -> list[Reply]:
    """The replies to requests that are sent at the same time."""
    with ThreadPoolExecutor(len(tasks)) as pool:
        return [future.result() for future in [pool.submit(task) for task in tasks]]


# --- answers ----------------------------------------------------------------------------------------------------------


def test_a_form_of_images_has_the_answers_of_predict(of_images: Served, image_model: Path) -> None:
    files = [picture(seed) for seed in range(5)]
    rows = of_images.images(files, "?top=3&members=true").rows
    assert_same(rows, rows_of_model(image_model, [opened(file) for file in files], LineForm(top=3, members=True)))
    assert {"is_ood", "set"} <= rows[0].keys()
    flags = {row["is_ood"] for row in of_images.images([picture(seed) for seed in range(32)]).rows}
    assert flags == {True, False}  # the comparison tells something


def test_the_rows_are_those_that_predict_writes(
    of_images: Served, image_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.png").write_bytes(picture(1))
    run("predict", image_model, "a.png", "-o", "p.jsonl")
    row = json.loads(Path("p.jsonl").read_text())
    row["id"] = "0"
    assert_same(of_images.images([picture(1)]).rows, [row])


@pytest.mark.parametrize("type", [PNG, "IMAGE/whatever; q=1", "application/octet-stream"])
def test_a_body_is_one_image(of_images: Served, type: str, image_model: Path) -> None:
    rows = of_images.ask("/predict", picture(3), type).rows
    assert_same(rows, rows_of_model(image_model, [opened(picture(3))]))


def test_texts_and_pairs_of_texts(of_texts: Served, text_model: Path) -> None:
    texts = ["a fine film", ["a film", "so dull !"], "", "not"]
    model_takes = [tuple(text) if isinstance(text, list) else text for text in texts]
    rows = of_texts.texts(texts).rows
    assert_same(rows, rows_of_model(text_model, model_takes))
    assert "is_ood" not in rows[0]  # of a checkpoint without a threshold


def test_concurrent_clients_get_their_own_answers_in_common_batches(image_model: Path) -> None:
    files = [picture(seed) for seed in range(24)]
    expected = rows_of_model(image_model, [opened(file) for file in files])
    with served(image_model, wait=0.2, batch_size=16) as service:
        replies = together([lambda file=file: service.images([file]) for file in files])
        metrics = service.metrics()
    for reply, row in zip(replies, expected, strict=True):
        assert_same(reply.rows, [{**row, "id": "0"}])
    assert metrics["hydractl_inputs_total"] == 24
    assert metrics["hydractl_batches_total"] < 24


def test_what_one_client_asks_for_beside_is_not_given_to_another(image_model: Path) -> None:
    with served(image_model, wait=0.2) as service:
        queries = ["", "?top=2", "?members=1", "?top=1&members=1"]
        replies = together([lambda query=query: service.images([picture(0)], query) for query in queries])
    assert ["top" in reply.rows[0] for reply in replies] == [False, True, False, True]
    assert ["members" in reply.rows[0] for reply in replies] == [False, False, True, True]
    assert [len(reply.rows[0].get("top", [])) for reply in replies] == [0, 2, 0, 1]


def test_a_request_larger_than_a_batch(image_model: Path) -> None:
    files = [picture(seed) for seed in range(5)]
    with served(image_model, batch_size=2) as service:
        rows = service.images(files).rows
    assert_same(rows, rows_of_model(image_model, [opened(file) for file in files]))


@pytest.mark.fault(82)
def test_a_batch_that_fails_is_run_again_one_by_one(image_model: Path) -> None:
    bad = hydractl.load(image_model, device="cpu").preprocess([opened(picture(1))])

    def predict(predict_all: Callable[[Any], Any], inputs: Any) -> Any:
        if any(torch.equal(single, bad[0]) for single in inputs):
            raise RuntimeError("secret of the input")
        return predict_all(inputs)

    with served(image_model, wait=0.2) as service, predicting(service, predict):
        replies = together([lambda seed=seed: service.images([picture(seed)]) for seed in range(3)])
    assert [reply.status for reply in replies] == [200, 500, 200]
    assert replies[1].json == {"error": "the model failed at input 0", "input": 0}
    assert service.log.warnings == ["the model failed at an input: RuntimeError"]


# --- what it tells of itself ------------------------------------------------------------------------------------------


def test_health_model_and_description(of_images: Served, image_model: Path) -> None:
    assert of_images.ask("/health").json == {"status": "ok"}
    about = of_images.ask("/model").json
    extra = hydractl.open(image_model).source.description.extra
    assert about["labels"] == [str(digit) for digit in range(10)]
    assert (about["ood_score"], about["threshold"]) == ("energy", extra["threshold"]["value"])
    assert about["limits"]["inputs"] == 32 and about["reads"] == "image" and about["members"] == 2
    paths = of_images.ask("/openapi.json").json["paths"]
    assert set(paths) == {"/predict", "/health", "/model", "/metrics"}


def test_prometheus_counts_requests_inputs_flags_and_time(image_model: Path) -> None:
    with served(image_model) as service:
        rows = service.images([picture(seed) for seed in range(6)]).rows
        service.images([b"no image"])
        service.ask("/nothing")
        metrics = service.metrics()
    flagged = sum(row["is_ood"] for row in rows)
    assert metrics["hydractl_inputs_total"] == 6
    assert metrics["hydractl_flagged_total"] == flagged
    assert metrics['hydractl_requests_total{status="422"}'] == metrics['hydractl_requests_total{status="404"}'] == 1
    assert metrics["hydractl_request_seconds_count"] == metrics['hydractl_request_seconds_bucket{le="+Inf"}'] == 2
    predicted = {row["predicted"] for row in rows}
    for label in predicted:
        count = sum(row["predicted"] == label for row in rows)
        assert metrics[f'hydractl_predicted_total{{class="{label}"}}'] == count
    assert metrics["hydractl_queue_inputs"] == metrics["hydractl_requests_in_hand"] == 0


def test_every_answered_input_is_compared_with_the_reference_and_nothing_else(
    image_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "WINDOW", 4)
    monkeypatch.setattr(watching, "FEWEST", 2)
    labels = hydractl.open(image_model).source.description.labels
    assert labels is not None
    counts = dict.fromkeys(labels, 1)
    scores = np.linspace(-50, -40, len(labels))  # far below what the model gives
    reference = reference_of(scores, np.ones(len(labels)), counts, flagged=0)
    windows = tmp_path / "windows.jsonl"
    with served(image_model, reference=reference, windows=windows) as service:
        service.images([picture(1), picture(2)])
        service.images([picture(3), b"broken"])  # an error to its client: none of its inputs counts
        assert service.metrics()["hydractl_windows_total"] == 0
        service.images([picture(4), picture(5), picture(6)])
        metrics = service.metrics()
    assert metrics["hydractl_inputs_total"] == 5
    assert metrics["hydractl_windows_total"] == 1 and metrics["hydractl_window_inputs"] == 4
    assert metrics['hydractl_score_shift_auroc{bound="estimate"}'] == 1
    (line,) = windows.read_text().splitlines()
    window = json.loads(line)
    assert (window["first"], window["n"], window["auroc"]["auroc"]) == (0, 4, 1)
    assert window["verdict"] == "alarm"
    assert any(window["advice"] in warning for warning in service.log.warnings)


# --- the command ------------------------------------------------------------------------------------------------------


def test_a_plan_says_the_model_and_the_limits(image_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("serve", image_model, "--max-body", "1", "--max-pixels", "2.5", "--max-text", "3", "--dry-run", "--json")
    plan = json.loads(capsys.readouterr().out)
    assert plan["schema"] == "hydractl.serve/1" and plan["model"]["name"] == "cal"
    assert plan["limits"] == {
        "body_bytes": 1 << 20,
        "inputs": 32,
        "pixels": 2_500_000,
        "text_bytes": 3000,
        "seconds": 10,
        "requests": 64,
    }


def test_a_port_in_use_and_an_address_of_others(
    of_images: Served, image_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("serve", image_model, "--port", str(of_images.address[1]), "--device", "cpu", code=5)
    assert "is in use" in capsys.readouterr().err
    run("serve", image_model, "--host", "no such host", "--device", "cpu", code=2)
    assert "there is no such address" in capsys.readouterr().err


def test_several_models_and_predictions_are_refused(image_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("serve", f"{image_model}+{image_model}", code=2)
    assert "serve runs one model" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.fault(81)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_command_behind_the_last_answer(
    image_model: Path, number: signal.Signals, tmp_path: Path
) -> None:
    command = [*STARTED, "serve", str(image_model), "--port", "0", "--device", "cpu", "--json"]
    # A batch waits long for company: the signal comes while a request is in hand.
    with open(tmp_path / "answer.json", "wb") as output:
        process = ForkedPopen([*command, "--wait", "900"], stdout=output, env=dict(os.environ))
    place = None
    for said in process.stderr:  # it ends when the command does
        place = re.search(r"http://127\.0\.0\.1:(\d+)", said.decode())
        if place is not None:
            break
    assert place is not None
    replies: list[Reply] = []
    asked = threading.Event()

    class Here(Served):
        @property
        def address(self) -> tuple[str, int]:
            return "127.0.0.1", int(place[1])

    here = Here(None, None)  # type: ignore[arg-type]
    body, content_type = form([picture(0)])

    def sent() -> Iterator[bytes]:
        yield body[:50]
        asked.set()
        yield body[50:]

    client = threading.Thread(target=lambda: replies.append(here.ask("/predict", sent(), content_type)))
    client.start()
    asked.wait(10)
    while not here.metrics()["hydractl_requests_in_hand"]:
        pass
    process.send_signal(number)
    errors = process.stderr.read().decode()
    client.join(10)
    assert process.wait() == 0, errors
    assert len(replies[0].rows) == 1
    assert json.loads((tmp_path / "answer.json").read_text())["inputs"] == 1
    assert "Traceback" not in errors


def test_json_needs_no_network_name(of_texts: Served) -> None:
    """A content type with parameters is the same type."""
    assert of_texts.ask("/predict", b'{"texts": ["a"]}', f"{JSON}; charset=utf-8").status == 200
