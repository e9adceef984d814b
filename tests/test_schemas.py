"""The published JSON Schemas: current, described, and of the documents that the verbs write."""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from rich.console import Console

from hydractl.cli.app import main
from hydractl.errors import InputError
from hydractl.files.header import read_header
from hydractl.files.results import Result
from hydractl.report.terminal import render
from tests.image_data import write_images
from tests.running import read_json, script

DOCS = Path(__file__).resolve().parents[1] / "docs"
PICO = "timm:vit_tiny_patch16_224?pretrained=0&img_size=16&patch_size=8&embed_dim=24&depth=2&num_heads=3&num_classes=5"
QUIET = ["-q", "--device", "cpu"]

Documents = list[tuple[str, Any]]


SCRIPT = script(DOCS / "make_schemas.py")
FORMS: dict[str, type[Result]] = {result.form(): result for result in SCRIPT.RESULTS}


def published(schema: str) -> dict[str, Any]:
    name = schema.removeprefix("hydractl.").replace("/", "-")
    found: dict[str, Any] = read_json(DOCS / "schemas" / f"{name}.json")
    return found


def test_the_published_schemas_are_current() -> None:
    files = {file.name: file.read_text(encoding="utf-8") for file in (DOCS / "schemas").iterdir()}
    assert files == {name: SCRIPT.text(schema) for name, schema in SCRIPT.schemas().items()}, "run: make docs"


def objects(schema: Any) -> Iterator[dict[str, Any]]:
    """The schema and its definitions."""
    yield schema
    yield from schema["$defs"].values() if "$defs" in schema else ()


@pytest.mark.parametrize("schema", FORMS)
def test_every_field_is_described(schema: str) -> None:
    document = published(schema)
    assert (document["$id"], document["title"], document["properties"]["schema"]["const"]) == (schema,) * 3
    for part in objects(document):
        described = {"": part, **part["properties"]}
        bare = [name for name, field in described.items() if not field.get("description", "").endswith(".")]
        assert bare == [], part["title"]


# --- what the verbs write ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Documents:
    """A document of every schema and more, written by the verbs; named by what it is."""
    folder = tmp_path_factory.mktemp("documents")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("hydractl.report.eval_html.page_images", lambda _: [])  # pictures take long and are no documents
        write_images(train=20, val=24, test=9, other=8, held_out=200)
        search = ["--val", "val.npz"]
        for command in (
            ["finetune", PICO, "--train", "train.npz", "--val", "val.npz", "--epochs", "1", "-o", "a.st"],
            ["prune", "a.st", "--method", "magnitude", "--keep", "2", "-o", "b.st"],
            ["fuse", "a.st", "b.st", "-o", "ab.st", "--json"],
            ["export", "a.st", "-o", "a.pt2", "--json"],
            ["score", "b.st", "--method", "taylor", "--data", "train.npz", "-o", "taylor.json"],
            ["score", "a.st", "--method", "cahp", "--data", "train.npz", "-o", "cahp.json"],
            ["extract-circuit", "b.st", *search, "--ood-val", "other.npz", "--budget", "3", "-o", "avg.json"],
            ["extract-circuit", "a.st", *search, "--objective", "nll", "--budget", "1", "-o", "nll.json"],
            [
                *("eval", "ab.st", "b.st", "deep=a.st+b.st", "--test", "test.npz", "--ood", "other:near=other.npz"),
                *("--val", "val.npz", "--ood-val", "far=other.npz", "--temperature", "vector", "--threshold"),
                *("ood:0.95", "--conformal", "0.2", "--bootstrap", "5", "--corruptions", "fog", "--severities", "1"),
                *("--allow-seen", "-o", "eval.json"),
            ],
            ["eval", "ab.st", "--test", "test.npz", "--mc-dropout", "0.1", "--predictions", "p.st", "-o", "mc.json"],
            [
                *("study", "a.st", "--val", "val.npz", "--ood-val", "auto", "--test", "test.npz", "--ood"),
                *("far=other.npz", "--rows", "single", "--bootstrap", "100", "-o", "study"),
            ],
            [
                *("calibrate", "ab.st", "--val", "val.npz", "--ood-val", "far=other.npz", "--temperature", "fit"),
                *("--threshold", "ood:0.9", "--conformal", "0.2", "--ood-score", "mi,msp", "-o", "cal.st", "--json"),
            ],
            ["predict", "cal.st", "held_out.npz", "--top", "2", "-o", "lines.jsonl", "--report", "predict.json"],
            ["bench", "a.st", "ab.st", "--compare", "stock", "--rounds", "2", "--batch-size", "1", "-o", "bench.json"],
        ):
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                quiet = QUIET[:1] if command[0] in ("export", "report") else QUIET  # which have no device
                assert main([*command, *quiet]) == 0, command
            if "--json" in command:
                Path(f"{command[0]}.json").write_text(printed.getvalue(), encoding="utf-8")
        files = [*sorted(folder.glob("*.json")), folder / "study/study.json"]
        found = [(file.name, read_json(file)) for file in files]
        return [*found, ("p.st", read_header("p.st").description)]


def undescribed(form: type[Result], document: Any) -> list[tuple[Any, ...]]:
    """The keys of a document that its form does not name."""
    try:
        form.model_validate(document, extra="forbid")
    except ValidationError as error:
        places = [problem["loc"] for problem in error.errors()]
        # The schema describes the metrics, too, whose keys are open in the form: other packages may declare some.
        described = {name for part in objects(published(form.form())) for name in part["properties"]}
        return [place for place in places if place[-1] not in described and place[-2:-1] != ("scores",)]
    return []


@pytest.mark.long
def test_what_the_verbs_write_is_described(documents: Documents) -> None:
    assert {document["schema"] for _, document in documents} == FORMS.keys()
    for name, document in documents:
        form = FORMS[document["schema"]]
        form.model_validate(document)
        assert undescribed(form, document) == [], name


@pytest.mark.long
def test_every_answer_has_a_table(documents: Documents) -> None:
    for name, document in documents:
        if document["schema"] in ("hydractl.mask/1", "hydractl.predictions/3"):  # these are no answers
            continue
        drawn = render(FORMS[document["schema"]].model_validate(document), 120)
        console = Console(width=120, record=True, file=io.StringIO())
        console.print(drawn)
        assert drawn is not None and len(console.export_text().splitlines()) >= 2, name


def _drop(key: str) -> Callable[[Any], Any]:
    return lambda document: document.pop(key)


BROKEN: dict[str, list[Callable[[Any], Any]]] = {
    "hydractl.bench/1": [_drop("results"), lambda d: d["results"][0].update(ratio=0)],
    "hydractl.calibrate/1": [_drop("model"), lambda d: d["conformal"].update(alpha="small")],
    "hydractl.circuit/2": [_drop("removed"), lambda d: d["removed"][0].update(correct=0.5)],
    "hydractl.eval/2": [_drop("models"), lambda d: d["models"][0]["id"].update(accuracy="high")],
    "hydractl.export/3": [_drop("exports"), lambda d: d["exports"][0].update(bytes="many")],
    "hydractl.fuse/1": [_drop("merge"), lambda d: d["averaging"].update(distance=0.1)],
    "hydractl.mask/1": [_drop("sites"), lambda d: next(iter(d["sites"].values())).update(kept=[-1])],
    "hydractl.predict/1": [_drop("model"), lambda d: d["ood"].update(n=-1)],
    "hydractl.predictions/3": [_drop("sets"), lambda d: d["sets"][0].update(role="test")],
    "hydractl.scores/1": [_drop("sites"), lambda d: d["sites"].update(more=["high"])],
    "hydractl.study/2": [_drop("verdict"), lambda d: d["rows"][0].update(chosen="yes")],
}


@pytest.mark.long
def test_broken_documents_are_refused_also_by_another_reader_of_json_schemas(documents: Documents) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    for name, document in documents:
        validator = jsonschema.Draft202012Validator(published(document["schema"]))
        validator.check_schema(validator.schema)
        assert [error.message for error in validator.iter_errors(document)] == [], name
        for damage in [_drop("schema"), *BROKEN[document["schema"]]]:
            broken = copy.deepcopy(document)
            damage(broken)
            assert not validator.is_valid(broken), name
            with pytest.raises(InputError):
                FORMS[document["schema"]].of(broken, name)
                raise AssertionError(name)
