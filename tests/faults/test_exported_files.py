"""Exported files that would run code, or read other files, when a library opens them: one line, and nothing happens.

Each attack is a file of ``export`` of which one thing is another.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from packaging.version import Version

import hydractl
from hydractl.cli.app import main
from hydractl.errors import InputError
from hydractl.exports import archive, targets
from hydractl.exports.metadata import _check_weights_beside
from hydractl.exports.program import Refused, check_expression
from tests.pico import SMALL

ROOT = Path(__file__).resolve().parents[2]
MODEL = "models/model.json"
COMMAND = "touch pwned"
Entries = dict[str, bytes]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with ``vit.pt2`` and ``vit.onnx``, which this version wrote."""
    folder = tmp_path_factory.mktemp("exported")
    model = hydractl.open(f"timm:vit_tiny_patch16_224?{SMALL.replace('depth=3', 'depth=1')}")
    for name in ("vit.pt2", "vit.onnx"):
        hydractl.export(model, folder / name)
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Evil:
    """What runs a command when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, (COMMAND,)


# --- attacks on .pt2 --------------------------------------------------------------------------------------------------


def edited(document: bytes, *path: Any, value: Any) -> bytes:
    """A JSON document in which one value is another."""
    whole = json.loads(document)
    *parents, last = path
    place = whole
    for key in parents:
        place = place[key]
    place[last] = value
    return json.dumps(whole).encode()


def in_graph(entries: Entries, *path: Any, value: Any) -> None:
    entries[MODEL] = edited(entries[MODEL], "graph_module", "graph", *path, value=value)


def sample_inputs(entries: Entries) -> None:
    buffer = io.BytesIO()
    torch.save(Evil(), buffer)
    entries["data/sample_inputs/model.pt"] = buffer.getvalue()


def expression(entries: Entries) -> None:
    size = {"as_expr": {"expr_str": f"__import__('os').system('{COMMAND}')", "hint": {"as_int": 2}}}
    in_graph(entries, "tensor_values", "pixel_values", "sizes", 0, value=size)


def called_function(entries: Entries) -> None:
    """``torch.os.system`` is found by its dotted name, and called as an operator."""
    graph = json.loads(entries[MODEL])["graph_module"]["graph"]
    argument = {"name": "", "arg": {"as_string": COMMAND}, "kind": 1}
    node = {"target": "torch.os.system", "inputs": [argument], "outputs": [{"as_sym_int": {"as_name": "x"}}]}
    node |= {"metadata": {}, "is_hop_single_tensor_return": None, "name": "x"}
    in_graph(entries, "nodes", value=[node, *graph["nodes"]])
    in_graph(entries, "sym_int_values", "x", value={"as_int": 0})


def guard(entries: Entries) -> None:
    text = f"__import__('os').system('{COMMAND}') == 0"
    entries[MODEL] = edited(entries[MODEL], "guards_code", value=[text])


def weights(entries: Entries) -> None:
    buffer = io.BytesIO()
    torch.save(Evil(), buffer)
    entries["data/weights/weight_0"] = buffer.getvalue()
    name = "data/weights/model_weights_config.json"
    first = next(iter(json.loads(entries[name])["config"]))
    entries[name] = edited(entries[name], "config", first, "use_pickle", value=True)


def old_weights(entries: Entries) -> None:
    """Older versions keep all weights in one pickle, for which newer ones look first."""
    buffer = io.BytesIO()
    torch.save(Evil(), buffer)
    entries["data/weights/model.pt"] = buffer.getvalue()


def constant_object(entries: Entries) -> None:
    name = "data/constants/model_constants_config.json"
    payload = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}
    entries[name] = edited(entries[name], "config", "evil", value=payload)
    entries["data/constants/opaque_obj_0"] = pickle.dumps(Evil())


def script_object(entries: Entries) -> None:
    name = "data/constants/model_constants_config.json"
    payload = {"path_name": "custom_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}
    entries[name] = edited(entries[name], "config", "evil", value=payload)


def imported_module(entries: Entries) -> None:
    """A tree of inputs with a ``defaultdict`` imports the module of its factory."""
    Path("evilmodule.py").write_text(f"import os\nos.system({COMMAND!r})\nfactory = dict\n")
    sys.modules.pop("evilmodule", None)
    inner = {"default_factory_module": "evilmodule", "default_factory_name": "factory", "dict_context": []}
    spec = [1, {"type": "collections.defaultdict", "context": inner, "children_spec": []}]
    path = ("graph_module", "module_call_graph", 0, "signature", "in_spec")
    entries[MODEL] = edited(entries[MODEL], *path, value=json.dumps(spec))


def compiled_library(entries: Entries) -> None:
    entries["data/aotinductor/model/evil.so"] = b"\x7fELF"


def name_of_a_node(entries: Entries) -> None:
    """Names stand in Python code that is made of the graph."""
    text = entries[MODEL].decode().replace("pixel_values", f"x=__import__('os').system('{COMMAND}')")
    entries[MODEL] = text.encode()


def file_reader(entries: Entries) -> None:
    in_graph(entries, "nodes", 1, "target", value="torch.ops.aten.from_file.default")


def higher_order(entries: Entries) -> None:
    in_graph(entries, "nodes", 1, "inputs", 0, "arg", value={"as_operator": "torch.hub.load"})


ATTACKS: dict[Callable[[Entries], None], str] = {
    sample_inputs: "sample inputs of ",
    expression: "the expression ",
    called_function: "the operator 'torch.os.system'",
    guard: "the text ",
    weights: "the value True",
    old_weights: "a pickle of more than tensors",
    constant_object: "the entry 'data/constants/opaque_obj_0'",
    script_object: "the text 'custom_obj_0'",
    imported_module: "the tree of inputs",
    compiled_library: "the entry 'data/aotinductor/model/evil.so'",
    name_of_a_node: "the name ",
    file_reader: "the operator 'torch.ops.aten.from_file.default'",
    higher_order: "the field 'as_operator'",
}
RUN_WHEN_LOADED = sorted(
    (sample_inputs, expression, weights, old_weights, constant_object, imported_module, name_of_a_node),
    key=lambda attack: attack.__name__,
)
LOAD = """
import contextlib, logging, pathlib, sys, torch
logging.disable()
sys.path.insert(0, "")
for path in sorted(pathlib.Path().glob("*.pt2")):
    with contextlib.suppress(Exception):
        torch.export.load(str(path)).module()(pixel_values=torch.zeros(2, 3, 16, 16))
    if pathlib.Path("pwned").exists():
        pathlib.Path("pwned").unlink()
        print(path.stem)
"""


def attacked(exported: Path, attack: Callable[[Entries], None], name: str = "evil.pt2") -> Path:
    """The exported file with one attack in it, in the current folder."""
    with zipfile.ZipFile(exported / "vit.pt2") as whole:
        entries = {entry.removeprefix("archive/"): whole.read(entry) for entry in whole.namelist()}
    attack(entries)
    with zipfile.ZipFile(name, "w") as evil:
        for entry, content in entries.items():
            evil.writestr(f"archive/{entry}", content)
    return Path(name)


def refusals(path: Path, capsys: pytest.CaptureFixture[str]) -> set[str]:
    """What ``--info`` and ``bench`` say of a file, having looked at their exit codes."""
    said = set()
    for words in (["--info", str(path)], ["bench", str(path), "--device", "cpu", "-q"]):
        assert main(words) == 3
        output = capsys.readouterr()
        assert output.out == ""
        assert len(output.err.splitlines()) == 2 and "internal" not in output.err
        said.add(output.err)
    return said


@pytest.mark.fault(58)
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_a_pt2_that_would_run_code(
    exported: Path, here: Path, capsys: pytest.CaptureFixture[str], attack: Callable[[Entries], None]
) -> None:
    (said,) = refusals(attacked(exported, attack), capsys)
    start = "error: evil.pt2 is not opened, for it holds what hydractl never exports and what could run: "
    assert said.startswith(start + ATTACKS[attack]), said
    assert "\nhint: export its checkpoint again: hydractl export FILE.st --format pt2\n" in said
    assert not Path("pwned").exists()


@pytest.mark.fault(58)
@pytest.mark.long
@pytest.mark.skipif(Version(torch.__version__) < Version("2.13"), reason="older versions read these files otherwise")
def test_these_attacks_are_real(exported: Path, here: Path) -> None:
    """torch itself runs the command: what is refused is no figment."""
    for attack in RUN_WHEN_LOADED:
        attacked(exported, attack, f"{attack.__name__}.pt2")
    done = subprocess.run([sys.executable, "-c", LOAD], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [attack.__name__ for attack in RUN_WHEN_LOADED]


@pytest.mark.fault(58)
def test_what_is_checked_is_what_is_loaded(exported: Path, here: Path) -> None:
    path = Path("vit.pt2")
    path.write_bytes((exported / "vit.pt2").read_bytes())
    with archive.opened(path) as checked, open("copy.pt2", "w+b") as copy:
        # Somebody writes into the file between the check and the load.
        path.write_bytes(path.read_bytes().replace(b"torch.ops.aten.linear", b"torch.ops.aten.wicked"))
        checked.copy(copy)
    with zipfile.ZipFile("copy.pt2") as written:
        document = written.read(f"archive/{MODEL}")
    assert b"linear" in document and b"wicked" not in document
    with archive.opened(Path("copy.pt2")):
        pass


@pytest.mark.fault(58)
def test_archives_that_are_none(exported: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = (exported / "vit.pt2").read_bytes()
    for content in (b"", b"PK\x03\x04", whole[:2000], whole[:-30], bytes(len(whole))):
        Path("broken.pt2").write_bytes(content)
        refusals(Path("broken.pt2"), capsys)
    with zipfile.ZipFile("packed.pt2", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr(f"archive/{MODEL}", b" " * 10**8)
    (said,) = refusals(Path("packed.pt2"), capsys)
    assert "the packed entry" in said
    with zipfile.ZipFile("empty.pt2", "w"):
        pass
    refusals(Path("empty.pt2"), capsys)


@pytest.mark.fault(58)
@pytest.mark.parametrize(
    "text",
    [
        "Symbol('s0', positive=True, integer=True)",
        "Mul(Integer(10), Symbol('s99', positive=True, integer=True))",
        "Add(Mul(Integer(2), Symbol('s1', positive=True, integer=True)), Integer(-1))",
        "Pow(Symbol('s1', positive=True, integer=True), Integer(2))",
        "7",
    ],
)
def test_expressions_of_sizes(text: str) -> None:
    check_expression(text)


@pytest.mark.fault(58)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "__import__('os')",
        "Symbol('s0').__class__",
        "Symbol('s0', commutative=print())",
        "Symbol('__import__')",
        "Symbol(Symbol('s0'))",
        "Integer('7')",
        "Add(*[1])",
        "Add(lambda: 0)",
        "(x := 1)",
        "Pow(Integer(9), Integer(9))",
        "Pow(Symbol('s0'), Integer(1000000000))",
        "Pow(Pow(Symbol('s0'), Integer(8)), Integer(8))",
        "1" * 30,
        "Add(" * 2000,
        "eval('1')",
        "Min(Add, Mul)",
        "Symbol('s0')\n",
        None,
        7,
    ],
)
def test_expressions_of_anything_else(text: Any) -> None:
    with pytest.raises(Refused, match="the expression"):
        check_expression(text)


@pytest.mark.fault(58)
def test_honest_files_open_and_are_described(exported: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind in ("pt2", "onnx"):
        assert main(["--info", str(exported / f"vit.{kind}"), "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert (document["holds"], document["format"], document["members"]) == ("hydractl.export/2", kind, 1)
    words = [str(exported / "vit.pt2"), str(exported / "vit.onnx"), "--rounds", "1", "--warmup", "0"]
    assert main(["bench", *words, "--device", "cpu", "-q", "-o", "b.json"]) == 0


# --- attacks on .onnx -------------------------------------------------------------------------------------------------


def outside(exported: Path, location: str) -> Path:
    """The exported graph whose first weights lie in another file."""
    model = onnx.load(exported / "vit.onnx")
    tensor = model.graph.initializer[0]
    size = len(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", str(size))):
        tensor.external_data.add(key=key, value=value)
    Path("evil.onnx").write_bytes(model.SerializeToString())
    return Path("evil.onnx")


@pytest.mark.fault(58)
@pytest.mark.parametrize("form", ["absolute", "above", "below", "link", "folder", "missing"])
def test_weights_of_an_onnx_file_outside_its_folder(
    exported: Path, here: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    secret = exported / "secret"
    secret.write_bytes(bytes(10_000))
    Path("link").symlink_to(secret)
    Path("folder").mkdir()
    (Path("folder") / "data").write_bytes(bytes(10_000))
    locations = {
        "absolute": str(secret),
        "above": os.path.relpath(secret),
        "below": "folder/data",
        "link": "link",
        "folder": "folder",
        "missing": "nothing",
    }
    (said,) = refusals(outside(exported, locations[form]), capsys)
    assert "evil.onnx is not opened, for it holds what hydractl never exports: weights in " in said


@pytest.mark.fault(58)
def test_operators_of_a_library(exported: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = onnx.load(exported / "vit.onnx")
    model.graph.node[0].domain = "evil.operators"
    model.opset_import.add(domain="evil.operators", version=1)
    Path("evil.onnx").write_bytes(model.SerializeToString())
    (said,) = refusals(Path("evil.onnx"), capsys)
    assert "operators of 'evil.operators'" in said


# --- what files say of themselves -------------------------------------------------------------------------------------

WRONG = {
    "macs": "many",
    "members": "-1",
    "family": "nobody",
    "preprocess": "[]",
    "labels": '["a", 1]',
    "inputs": '"a" "b"',
    "format": "onnx-int8",
    "schema": "hydractl.export/1",
    "input": "tokens",
    "shapes": '{"inputs": {}, "outputs": {"probabilities": {"dtype": "float32", "shape": [{}]}}}',
    "ood_score": "mi",  # of a single model: the graph would have no score
    "threshold": '{"score": "msp", "value": -0.5, "rule": "id:0.05"}',  # the graph has no flag
    "calibration": '{"kind": "vector", "scale": [1e300], "bias": [0]}',
    "conformal": '{"method": "lac", "alpha": 0.1, "qhat": 7, "n_val": 1}',
    "data_sha256": "0" * 64,
}
WRONG_COUNTS = {"members": "2", "labels": '["a", "b"]'}
"""Counts that could be, and are not those of the graph."""
SIZES = [[3, 32, 32], [3, 10**6, 10**6], [3, "16", 16], 7, []]


@pytest.mark.fault(70, 84)
@pytest.mark.parametrize("key", WRONG)
def test_metadata_that_cannot_be(exported: Path, here: Path, capsys: pytest.CaptureFixture[str], key: str) -> None:
    def change(entries: Entries) -> None:
        entries[f"extra/{key}"] = WRONG[key].encode()

    path = attacked(exported, change)
    for words in (["--info", str(path)], ["bench", str(path), "--device", "cpu", "-q"]):
        assert main(words) == 3
        said = capsys.readouterr().err
        assert "internal" not in said and "evil.pt2" in said.splitlines()[0]


@pytest.mark.fault(70, 84)
@pytest.mark.parametrize("key", WRONG_COUNTS)
def test_counts_of_another_graph(exported: Path, here: Path, capsys: pytest.CaptureFixture[str], key: str) -> None:
    def change(entries: Entries) -> None:
        entries[f"extra/{key}"] = WRONG_COUNTS[key].encode()

    (said,) = refusals_of_metadata(attacked(exported, change), capsys)
    assert "evil.pt2 says of itself what cannot be" in said and ", and it would be " in said


def refusals_of_metadata(path: Path, capsys: pytest.CaptureFixture[str]) -> set[str]:
    """What ``--info`` and ``predict`` say of a file, having looked at their exit codes."""
    said = set()
    for words in (["--info", str(path)], ["predict", str(path), "nothing.npz"]):
        assert main(words) == 3
        said.add(capsys.readouterr().err)
    return said


@pytest.mark.fault(58, 84)
def test_weights_beside_a_file_are_known_by_their_digest(here: Path) -> None:
    weights = Path("vit.onnx.data")
    weights.write_bytes(b"weights")
    known = {"data_sha256": hashlib.sha256(b"weights").hexdigest()}
    _check_weights_beside(known, [weights], Path("vit.onnx"))
    weights.write_bytes(b"others")
    with pytest.raises(InputError, match="vit.onnx.data does not hold the weights that vit.onnx was written with"):
        _check_weights_beside(known, [weights], Path("vit.onnx"))
    with pytest.raises(InputError, match="has weights in 1 files beside it"):
        _check_weights_beside({}, [weights], Path("vit.onnx"))


@pytest.mark.long
@pytest.mark.fault(58, 84)
def test_weights_beside_a_file_that_are_not_its_own(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(targets, "MOST_IN_ONE_FILE", 0)
    model = hydractl.open(f"timm:vit_tiny_patch16_224?{SMALL.replace('depth=3', 'depth=1')}")
    hydractl.export(model, "vit.onnx")
    assert main(["--info", "vit.onnx"]) == 0
    capsys.readouterr()
    weights = bytearray(Path("vit.onnx.data").read_bytes())
    weights[100] ^= 1
    Path("vit.onnx.data").write_bytes(weights)
    (said,) = refusals_of_metadata(Path("vit.onnx"), capsys)
    assert "vit.onnx.data does not hold the weights that vit.onnx was written with" in said


@pytest.mark.fault(70, 84)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_inputs_that_cannot_be(exported: Path, here: Path, capsys: pytest.CaptureFixture[str], size: Any) -> None:
    def change(entries: Entries) -> None:
        entries["extra/preprocess"] = edited(entries["extra/preprocess"], "input_size", value=size)

    assert main(["bench", str(attacked(exported, change)), "--device", "cpu", "-q"]) == 3
    assert "internal" not in capsys.readouterr().err


@pytest.mark.fault(70)
@pytest.mark.parametrize("kind", ["pt2", "onnx"])
def test_broken_exported_files_in_a_bench(
    exported: Path, here: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    """Graphs that are well-formed, and cannot be loaded or run."""
    if kind == "pt2":
        attacked(exported, lambda entries: in_graph(entries, "nodes", 3, "inputs", value=[]), "broken.pt2")
        attacked(exported, lambda entries: entries.update({"data/weights/weight_1": b""}), "empty.pt2")
        names = ["broken.pt2", "empty.pt2"]
    else:
        model = onnx.load(exported / "vit.onnx")
        model.graph.node[0].op_type = "Nothing"
        Path("broken.onnx").write_bytes(model.SerializeToString())
        model = onnx.load(exported / "vit.onnx")
        model.graph.output[0].name, model.graph.input[0].name = "other", "another"
        Path("other.onnx").write_bytes(model.SerializeToString())
        names = ["broken.onnx", "other.onnx"]
    for name in names:
        code = main(["bench", name, "--device", "cpu", "-q", "--rounds", "1", "-o", f"{name}.json"])
        said = capsys.readouterr().err
        lines = [line for line in said.splitlines() if not line.startswith("  - ")]
        assert code == 3 and "internal" not in said and len(lines) <= 2, said
