"""The Python API: the same as the commands, on files and on what a program holds in memory."""

from __future__ import annotations

import gc
import importlib.util
import pkgutil
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import hydractl
from hydractl.api.models import held_spec
from hydractl.cli.app import main
from hydractl.data import open_data
from hydractl.errors import InputError, OutputError, UsageError
from hydractl.expressions.data_sets import DataSpec
from hydractl.files.checkpoint import sha256_file
from tests.pico import SMALL
from tests.running import read_json

DOCS = Path(__file__).parents[2] / "docs"
RANDOM = np.random.default_rng(0)
X, Y = RANDOM.integers(0, 256, (20, 16, 16, 3), dtype=np.uint8), np.arange(20) % 5
OTHER = RANDOM.integers(0, 256, (20, 16, 16, 3), dtype=np.uint8)
QUIET = "ignore:.*(no head is removed|fewer than --samples|hardly differ):UserWarning"
pytestmark = pytest.mark.filterwarnings(QUIET)


@pytest.fixture(autouse=True, scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A folder with vit.st, a.st (8 of 9 heads, by the command line) and cal.npz."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("api"))
        hydractl.save(hydractl.open(f"timm:vit_tiny_patch16_224?{SMALL}"), "vit.st")
        np.savez("cal.npz", x=X, y=Y)
        prune = ["prune", "vit.st", "--method", "taylor", "--keep", "2", "--seed", "1", "--data", "cal.npz"]
        assert main([*prune, "-o", "a.st", "-q"]) == 0
        yield


def test_a_function_does_what_its_command_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hydractl.report.eval_html.page_images", lambda _: [])  # drawing takes long
    model = hydractl.open("vit.st")
    made = hydractl.prune(model, method="taylor", keep=2, seed=1, data=(X, Y))
    assert sha256_file(made.refs[0]) == sha256_file("a.st")  # though the data were in memory, and the model was open
    assert main(["eval", "b=a.st", "m=vit.st+a.st", "--test", "cal.npz", "--allow-seen", "-o", "e.json", "-q"]) == 0
    rows = {"b": made, "m": [model, "a.st"]}
    assert hydractl.evaluate(rows, test="cal.npz", allow_seen=True).to_dict() == read_json("e.json")
    assert hydractl.make_report("e.json").names == ["b", "m"]
    hydractl.make_report("e.json", html="file.html")
    hydractl.make_report(read_json("e.json"), html="held.html")
    assert Path("file.html").read_bytes() == Path("held.html").read_bytes()


def test_documents_go_from_verb_to_verb() -> None:
    found = hydractl.extract_circuit("vit.st", val=(X, Y), objective=["acc", "nll"], keep=2)
    assert [circuit.objective for circuit in found.circuits] == ["acc", "nll"]
    circuit = hydractl.extract_circuit("vit.st", val=(X, Y), objective="nll", keep=2, output="c.json")
    assert circuit == found.circuits[1] and circuit.files == [Path("c.json")]
    kept = [hydractl.prune("vit.st", circuit=one).result.mask.sites for one in (circuit, "c.json")]
    assert kept[0] == kept[1]
    assert hydractl.save(circuit, "d.json").read_bytes() == Path("c.json").read_bytes()


def test_a_training_of_ones_own() -> None:
    module = hydractl.load("a.st", device="cpu").train()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1.01)
    path = hydractl.save(module.eval(), "mine.st", trained_on=(X, Y))
    inputs = module.preprocess(X)
    assert torch.equal(hydractl.load(path, device="cpu")(inputs), module(inputs))
    base = hydractl.open("vit.st").source.sha256
    assert base in hydractl.open(path).source.lineage
    assert {use["by"] for use in hydractl.open(path).description.seen} == {"prune", "save"}
    with pytest.raises(hydractl.errors.InputError, match="all of them by prune"):
        hydractl.evaluate(path, test=(X, Y))
    fused = hydractl.fuse([module, "a.st"], merge="none")
    assert fused.result.members[0].kind == "pruned"
    with pytest.raises(hydractl.errors.InputError, match="several members"):
        hydractl.save(fused.load("cpu"), "h.st")
    hydractl.save(fused, "h.st")
    assert sha256_file("h.st") == sha256_file(fused.refs[0])
    with pytest.raises(hydractl.errors.OutputError):
        hydractl.save(fused, "h.st")


def test_what_was_given_no_name_is_removed() -> None:
    made = hydractl.prune("vit.st", method="magnitude", keep=1)
    path = Path(made.refs[0])
    opened = hydractl.open(made, name="other", labels=list("abcde"))
    assert opened.description.labels == list("abcde") and hydractl.prune(opened, method="magnitude", keep=1).name
    with pytest.raises(hydractl.errors.UsageError, match="this model is open"):
        hydractl.open(made, seed=1)
    del made
    gc.collect()
    assert path.exists() and opened.name == "other"
    del opened
    gc.collect()
    assert not path.parent.exists()


def test_several_trainings_are_the_members_of_one_model() -> None:
    trained = hydractl.finetune("a.st", train=(X, Y), ensemble="classifiers:2", epochs=1)
    assert [member.name for member in trained.members] == ["tuned.1", "tuned.2"]
    with pytest.raises(hydractl.errors.UsageError, match="2 models"):
        trained.load()
    seeds = hydractl.finetune(trained.members[0].load("cpu"), train=(X, Y), ensemble="deep:2", epochs=1)
    assert [member.name for member in seeds.members] == ["tuned.0", "tuned.1"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"scores": {"sites": {1.5j}}, "keep": 2}, "scores is no JSON document"),
        ({"method": "magnitude", "keep": True}, "keep must be a whole number, not True"),
        ({"method": "magnitude", "keep": 2.5}, "keep must be a whole number, not 2.5"),
        ({"method": "magnitude", "keep": "many"}, "keep must be a whole number, not 'many'"),
        ({"method": "magnitude", "keep": [2]}, "keep takes one value, not a list"),
        ({"method": "magnitude", "keep": -1}, "keep must be at least 0, not -1"),
        ({"method": "magnitude", "remove": "many"}, "remove must be a whole number, not 'many'"),
        ({"method": "taylr", "keep": 1}, "gate, magnitude, oba, random, taylor, not 'taylr'; did you mean taylor?"),
        ({"method": "magnitude", "keep": 1, "force": 2}, "force must be true or false, not 2"),
        (
            {"method": "magnitude", "keep": 1, "device": "cuda:x"},
            "device must be auto|cpu|cuda[:i]|mps, such",
        ),
        ({"method": "magnitude", "max_drop": float("nan")}, "max_drop must be a number, not nan"),
        ({"method": "magnitude", "keep": 1, "with_mask": "m.json"}, "with_mask needs share_sites"),
        ({"mask": "m.json", "keep": 1}, "keep has no effect with mask m.json"),
        ({"method": "taylor", "keep": 2}, "prune method taylor needs data"),
        ({"method": "taylor", "keep": 2, "data": "none.npz"}, "data none.npz: no such file"),
        ({"method": "taylor", "keep": 2, "data": (X, Y[:3])}, "3 labels for 20 samples"),
        ({"method": "taylor", "keep": 2, "data": X}, "no label for sample data#0"),
        ({"method": "taylor", "keep": 2, "data": (["a", "b"], [0, 1])}, "holds texts"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(hydractl.errors.HydraError) as caught:
        hydractl.prune("vit.st", **options)
    assert said in " ".join([caught.value.message, *caught.value.problems])


def test_wrong_rows_and_gates_are_refused() -> None:
    with pytest.raises(hydractl.errors.UsageError, match="ood must be a mapping from names to data sets, not ndarray"):
        hydractl.evaluate("a.st", test="cal.npz", ood=OTHER)
    with pytest.raises(hydractl.errors.UsageError, match="name of a row"):
        hydractl.evaluate({"a=b": "a.st"}, test="cal.npz")
    with pytest.raises(hydractl.errors.RequirementError) as caught:
        hydractl.evaluate("a.st", test="cal.npz", allow_seen=True, require="id.accuracy>=1.1")
    assert "accuracy" in caught.value.message


def test_a_file_of_defaults_counts_only_where_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("hydra.yaml").write_text("prune: {keep: 1}")
    try:
        with pytest.raises(hydractl.errors.UsageError, match="needs one of keep, remove, max_drop"):
            hydractl.prune("vit.st", method="magnitude")
        made = hydractl.prune("vit.st", method="magnitude", config="hydra.yaml")
        assert {len(kept) for kept in made.description.mask.kept.values()} == {1}
    finally:
        Path("hydra.yaml").unlink()


def test_warnings_and_problems_name_arguments() -> None:
    with pytest.warns(UserWarning, match="no head is removed"):
        hydractl.prune("vit.st", method="magnitude", keep=3)
    with pytest.raises(hydractl.errors.UsageError) as caught:
        hydractl.prune("vit.st", method="magnitude", keep=1, remove=1, scope="sites")
    assert caught.value.hint == "help(hydractl.prune)" and str(caught.value) == "2 problems with the options of prune"
    assert caught.value.problems == [
        "scope must be one of site, global, not 'sites'; did you mean site?",
        "give only one of keep, remove",
    ]
    with pytest.raises(hydractl.errors.InputError, match="^ood\\['far'\\] has no samples"):
        hydractl.evaluate("vit.st", test=(X, Y), ood={"far": []})


def test_what_cannot_be_taken_is_said_in_words_of_python(tmp_path: Path) -> None:
    opened = hydractl.open("vit.st")
    with pytest.raises(UsageError, match=r"ood must be NAME\[:near\|far\]=SPEC, not 'a b'$"):
        hydractl.evaluate(opened, test=(X, Y), ood={"a b": X})
    with pytest.raises(InputError, match="^data nowhere/: no such file or folder"):
        hydractl.predict(opened, data="nowhere/")
    module = hydractl.load(opened, device="cpu")
    with pytest.raises(InputError, match="was given none"):
        module.preprocess([])
    hydractl.save(module, tmp_path / "a.st")
    with pytest.raises(OutputError) as raised:
        hydractl.save(module, tmp_path / "a.st")
    assert raised.value.hint == "add force to replace it, or choose another name"
    several = hydractl.load(hydractl.fuse([opened, opened]), device="cpu")
    with pytest.raises(InputError, match="a loaded module of several members") as refused:
        hydractl.evaluate(several, test=(X, Y))
    assert "give the file or the Model" in str(refused.value.hint)


def test_numbers_of_arrays_are_numbers() -> None:
    made = hydractl.prune("vit.st", method="magnitude", keep=np.int64(1), seed=torch.tensor(0))
    assert {len(kept) for kept in made.description.mask.kept.values()} == {1}


def test_results_are_objects_with_tables() -> None:
    result = hydractl.evaluate({"one": "vit.st", "two": "a.st"}, test=(X, Y), ood={"far:far": OTHER}, allow_seen=True)
    assert result.names == ["one", "two"] and result.row("two") is result.models[1]
    assert repr(result) == "<EvalAnswer hydractl.eval/2>"
    with pytest.raises(KeyError, match="the rows are one, two"):
        result.row("three")
    assert str(result).startswith("in distribution (n = 20), OOD averages\nmodel     acc     NLL")
    page = result._repr_html_()
    assert page.startswith("<pre") and "OOD averages" in page and "\x1b" not in page
    frame = result.to_pandas()
    assert list(frame["name"]) == ["one", "two"]
    assert frame["ood.far.auroc"][1] == result.models[1].ood["far"].auroc == result.at("models.1.ood.far.auroc")
    plain = result.to_dict()
    plain["models"][0]["name"] = "changed"
    assert type(plain) is dict and result.names == ["one", "two"]
    scores = hydractl.score("vit.st", method="magnitude")
    assert len(scores.to_pandas()) == sum(len(heads) for heads in scores.sites.values())
    made = hydractl.prune("vit.st", scores=scores, keep=1)
    assert "parameters" in made._repr_html_()
    assert "<script>" not in hydractl.open("vit.st", name="<script>")._repr_html_()


def test_no_function_has_the_name_of_a_folder() -> None:
    folders = {module.name for module in pkgutil.iter_modules(hydractl.__path__)}
    assert folders & set(hydractl.__all__) == {"errors"}


# --- data in memory ---------------------------------------------------------------------------------------------------


def test_images_in_memory_are_those_of_a_file() -> None:
    tensors = torch.from_numpy(X).permute(0, 3, 1, 2)
    forms = [X, list(X), [Image.fromarray(x) for x in X], tensors, tensors.float() / 255, X.astype(np.float64) / 255]
    of_file = open_data("cal.npz")
    for number, form in enumerate(forms):
        labels = torch.from_numpy(Y) if number else list(Y)
        assert open_data(held_spec("--data", (form, labels), "data")).fingerprint() == of_file.fingerprint()
    held = held_spec("--data", (X, list(Y)), "data")
    assert isinstance(held, DataSpec)
    limited = open_data(held.with_setting("corruption=gaussian_noise&severity=1"), limit=5)
    assert limited.spec == "memory:data?corruption=gaussian_noise&severity=1"
    assert limited.ids == [f"data#{i}" for i in range(5)]
    with pytest.raises(hydractl.errors.InputError, match="nothing of this name is in memory"):
        open_data("memory:0")


def test_a_file_with_the_name_of_an_argument_is_no_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vit = str(Path("vit.st").resolve())
    monkeypatch.chdir(tmp_path)
    Path("data").write_text("of another run")
    scores = hydractl.score(vit, method="taylor", data=(X, Y), output="data", force=True)
    assert read_json("data")["sites"] == scores.sites


@pytest.mark.long
def test_a_study_of_what_is_in_memory_is_that_of_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hydractl.report.eval_html.page_images", lambda _: [])  # drawing takes long
    draws = np.random.default_rng(1).integers(0, 256, (4, 20, 16, 16, 3), dtype=np.uint8)
    held: dict[str, Any] = dict(zip(("test", "seen", "other", "noise"), draws, strict=True))
    for name, images in held.items():
        np.savez(f"{name}.npz", x=images, y=Y)

    how: dict[str, Any] = {"rows": "whole-avg", "bootstrap": 100, "timed": False}
    ood_val: dict[str, Any] = {"seen": "seen.npz", "other": "other.npz"}  # two, as made samples are drawn by ids
    files = {"val": "cal.npz", "test": "test.npz", "ood_val": ood_val, "ood": {"noise": "noise.npz"}}
    of_files = hydractl.study("vit.st", **files, output="files", **how)
    ood_val = {name: held[name] for name in ood_val}
    objects = {"val": (X, Y), "test": (held["test"], Y), "ood_val": ood_val, "ood": {"noise": held["noise"]}}
    model = hydractl.load("vit.st", device="cpu")
    given = hydractl.study(model, **objects, output="held", **how)
    assert given.rows == of_files.rows and given.verdict == of_files.verdict
    script = Path("held/study.sh").read_text()
    in_memory = ("memory:0", "memory:val", "memory:test", "memory:ood_val.seen", "memory:ood.noise")
    assert all(f"# {name} was in memory: write it to a file" in script for name in in_memory)
    assert "single=memory:0 --test 'memory:val?part=2/2'" in script
    assert "memory:" not in Path("files/study.sh").read_text()

    # It goes on with the same objects, and with no others.
    assert hydractl.study(model, **objects, output="held", **how) == given
    objects["val"] = (X, Y[::-1])
    with pytest.raises(hydractl.errors.OutputError, match="study of other settings or data"):
        hydractl.study(model, **objects, output="held", **how)


def test_texts_in_memory() -> None:
    pairs = [("a", "b"), ("c", "d")]
    texts = open_data(held_spec("--data", (["one", "two"], ["no", "yes"]), "data"))
    assert list(texts) == ["one", "two"]
    assert texts.label_names == ["no", "yes"]
    assert [*map(int, texts.labels)] == [0, 1]
    assert list(open_data(held_spec("--data", (pairs, None), "data"))) == pairs
    for wrong in ((["a", 1], None), ([], [])):
        with pytest.raises(hydractl.errors.InputError):
            open_data(held_spec("--data", wrong, "data"))


@pytest.mark.long
def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vit = Path("vit.st").read_bytes()
    monkeypatch.chdir(tmp_path)
    Path("vit.st").write_bytes(vit)
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / "python.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    scope: dict[str, Any] = {}
    for block in blocks:
        exec(block, scope)
    assert len(blocks) == 8 and scope["logits"].shape == (3, 24, 5)


@pytest.mark.long
def test_the_way_in_from_other_tools_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page, _, _ = (DOCS / "interop.md").read_text().partition("\n## What others run\n")
    blocks = re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    needed = {"transformers.Trainer(": "accelerate", "lightning.Trainer(": "lightning"}
    scope: dict[str, Any] = {}
    for block in blocks:
        missing = [tool for call, tool in needed.items() if call in block and not importlib.util.find_spec(tool)]
        if not missing:
            exec(block, scope)
    assert len(blocks) == 8
    mine, theirs = hydractl.evaluate({"m": "mine.pred.st", "t": "theirs.pred.st"}).models
    assert mine.diversity["id"].mi == 0 and theirs.diversity["id"].mi > 0.1
