"""Folders and checkpoints that name files outside, repositories of a hub or code: no library looks for any of them.

Each hostile one is an honest model with a few entries changed. Files outside of it are canaries. The short tests open
all of them in this process, without a network, and look at the canaries; the long one runs commands under strace, which
alone sees what the libraries in Rust open.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from hydractl.cli.app import main
from hydractl.errors import HydraError
from hydractl.model.source import ModelOptions, open_source
from tests.fuzz.readers import CORPUS
from tests.pico import WORDS, published
from tests.running import described, read_json

ROOT = Path(__file__).resolve().parents[2]
CANARY = "zvogelkanarie"
TIMM = "timm:vit_tiny_patch16_224?pretrained=0&img_size=8&patch_size=4&embed_dim=6&depth=1&num_heads=3&num_classes=2"
TOKENIZER, SPECIAL, CONFIG = "tokenizer_config.json", "special_tokens_map.json", "config.json"
IMAGES, CLIP, INDEX = "preprocessor_config.json", "open_clip_config.json", "model.safetensors.index.json"


def trunk(name: str, **more: Any) -> dict[str, Any]:
    return {"vision_cfg": {"timm_model_name": name, **more}}


def text_tower(**settings: Any) -> dict[str, Any]:
    return {"text_cfg": settings}


# Name -> (the honest model, the entries that are merged into its files). OUT is the folder of canaries. A text in place
# of the entries makes the file a link; None removes it. The entries of a checkpoint are those of its description.
FOLDERS: dict[str, tuple[str, dict[str, Any]]] = {
    # a tokenizer of one vocabulary, which its class reads by name
    "vocab": ("words", {TOKENIZER: {"vocab": "OUT/secret.txt"}}),
    "vocab, relative": ("words", {TOKENIZER: {"vocab": "../outside/secret.txt"}}),
    "vocab, special tokens": ("words", {SPECIAL: {"vocab": "OUT/secret.txt"}}),
    "vocab_file": ("words", {TOKENIZER: {"vocab_file": "OUT/secret.txt"}, "vocab.txt": None}),
    "vocab_file, of the base class": (
        "words",
        {TOKENIZER: {"tokenizer_class": "TokenizersBackend"}, SPECIAL: {"vocab_file": "OUT/secret.model"}},
    ),
    "init_inputs": ("words", {TOKENIZER: {"init_inputs": ["OUT/secret.txt"]}}),
    "gguf_file": ("words", {TOKENIZER: {"tokenizer_class": "TokenizersBackend", "gguf_file": "OUT/secret.gguf"}}),
    "sp_model_kwargs": (
        "words",
        {
            TOKENIZER: {
                "tokenizer_class": "BertGenerationTokenizer",
                "sp_model_kwargs": {"model_file": "OUT/secret.model"},
            }
        },
    ),
    "sentencepiece": (
        "words",
        {TOKENIZER: {"tokenizer_class": "XLMRobertaTokenizer"}, SPECIAL: {"vocab_file": "OUT/secret.model"}},
    ),
    "src_vocab_file": (
        "words",
        {
            TOKENIZER: {"tokenizer_class": "FSMTTokenizer", "langs": ["en", "de"]},
            SPECIAL: {"src_vocab_file": "OUT/vocab.json", "tgt_vocab_file": "OUT/vocab.json", "merges_file": "OUT/m"},
        },
    ),
    # of byte pairs
    "vocab of byte pairs": ("pairs", {TOKENIZER: {"vocab": "OUT/vocab.json"}}),
    "merges": ("pairs", {TOKENIZER: {"merges": "OUT/merges.txt"}}),
    "merges_file": ("pairs", {SPECIAL: {"merges_file": "OUT/merges.txt"}, "merges.txt": None}),
    # tokenizer.json itself
    "tokenizer_file": ("bert", {TOKENIZER: {"tokenizer_file": "OUT/tokenizer.1.0.json"}}),
    "tokenizer_file, special tokens": (
        "bert",
        {TOKENIZER: {"added_tokens_decoder": None}, SPECIAL: {"tokenizer_file": "OUT/tokenizer.1.0.json"}},
    ),
    "fast_tokenizer_files": ("bert", {TOKENIZER: {"fast_tokenizer_files": ["../outside/tokenizer.1.0.json"]}}),
    "auto_map of a tokenizer": (
        "bert",
        {TOKENIZER: {"auto_map": {"AutoTokenizer": [None, "evil/x--code.Tokenizer"]}}},
    ),
    "name_or_path": (
        "bert",
        {
            TOKENIZER: {"added_tokens_decoder": None},
            SPECIAL: {"name_or_path": "evil/x", "is_local": False, "local_files_only": False},
        },
    ),
    # links
    "vocab.txt, a link": ("words", {"vocab.txt": "OUT/secret.txt"}),
    "tokenizer.json, a link": ("bert", {"tokenizer.json": "OUT/tokenizer.1.0.json"}),
    "config.json, a link": ("bert", {CONFIG: "OUT/config.json"}),
    "preprocessor_config.json, a link": ("vit", {IMAGES: "OUT/preprocessor_config.json"}),
    "open_clip_config.json, a link": ("clip", {CLIP: "OUT/config.json"}),
    "weights, a link": ("bert", {"model.safetensors": "OUT/model.safetensors"}),
    "weights of timm, a link": ("timm", {"model.safetensors": "OUT/model.safetensors"}),
    "weights of open_clip, a link": ("clip", {"open_clip_model.safetensors": "OUT/model.safetensors"}),
    "an index, a link": ("bert", {"model.safetensors": None, INDEX: "OUT/vocab.json"}),
    "a shard, a link": (
        "bert",
        {
            "model.safetensors": None,
            "a.safetensors": "OUT/model.safetensors",
            INDEX: {"weight_map": {"a": "a.safetensors"}},
        },
    ),
    # a model of transformers
    "auto_map of a model": ("bert", {CONFIG: {"auto_map": {"AutoModel": "evil/x--code.Model"}}}),
    "a kernel of the hub": (
        "two towers",
        {CONFIG: {"text_config": {"attn_implementation": "kernels-community/flash-attn"}}},
    ),
    "a kernel of the hub, privately": (
        "two towers",
        {CONFIG: {"vision_config": {"_attn_implementation": "evil/x:kernel"}}},
    ),
    "transformers_weights": ("older", {CONFIG: {"transformers_weights": "../outside/model.safetensors"}}),
    "an adapter": (
        "older",
        {"adapter_config.json": {"base_model_name_or_path": "evil/x", "peft_type": "LORA", "auto_mapping": None}},
    ),
    "shards": ("bert", {"model.safetensors": None, INDEX: {"weight_map": {"a": "../outside/model.safetensors"}}}),
    # image processors
    "a processor that fetches": (
        "vit",
        {IMAGES: {"image_processor_type": "OneFormerImageProcessor", "repo_path": "evil/x", "class_info_file": "c"}},
    ),
    "a processor of all inputs": (
        "vit",
        {
            "processor_config.json": {
                "image_processor": {
                    "image_processor_type": "OneFormerImageProcessorFast",
                    "repo_path": "evil/x",
                    "class_info_file": "c.json",
                }
            }
        },
    ),
    "an older name of a processor": (
        "vit",
        {
            IMAGES: {
                "image_processor_type": None,
                "feature_extractor_type": "OneFormerFeatureExtractor",
                "repo_path": "evil/x",
                "class_info_file": "c",
            }
        },
    ),
    "auto_map of a processor": ("vit", {IMAGES: {"auto_map": {"AutoImageProcessor": "evil/x--code.Processor"}}}),
    # timm
    "an architecture on the hub": ("timm", {CONFIG: {"architecture": "hf-hub:evil/x"}}),
    "an architecture in a folder": ("timm", {CONFIG: {"architecture": "local-dir:OUT"}}),
    "pretrained": (
        "timm",
        {CONFIG: {"pretrained_cfg": {"hf_hub_id": "evil/x", "source": "hf-hub"}, "model_args": {"pretrained": True}}},
    ),
    "checkpoint_path": ("timm", {CONFIG: {"model_args": {"checkpoint_path": "OUT/model.safetensors"}}}),
    "weights by address": (
        "timm",
        {
            CONFIG: {
                "pretrained_cfg": {"url": "http://127.0.0.1:9/x", "file": "OUT/model.safetensors"},
                "model_args": {"pretrained_cfg_overlay": {"file": "OUT/model.safetensors"}},
            }
        },
    ),
    # open_clip
    "a trunk on the hub": ("clip", {CLIP: {"model_cfg": trunk("hf-hub:evil/x")}}),
    "a trunk on the hub, in capitals": ("clip", {CLIP: {"model_cfg": trunk("HF-HUB:evil/x@main")}}),
    "a trunk in a folder": ("clip", {CLIP: {"model_cfg": trunk("local-dir:OUT")}}),
    "a pretrained trunk": (
        "clip",
        {CLIP: {"model_cfg": trunk("vit_tiny_patch16_224", timm_model_pretrained=True)}},
    ),
    "a text tower on the hub": ("clip", {CLIP: {"model_cfg": text_tower(hf_model_name="evil/x")}}),
    "a text tower in a folder": ("clip", {CLIP: {"model_cfg": text_tower(hf_model_name="OUT")}}),
    "a tokenizer on the hub": ("clip", {CLIP: {"model_cfg": text_tower(hf_tokenizer_name="evil/x")}}),
    "a tokenizer in a folder": ("clip", {CLIP: {"model_cfg": text_tower(hf_tokenizer_name="OUT")}}),
    "byte pairs elsewhere": (
        "clip",
        {CLIP: {"model_cfg": text_tower(tokenizer_kwargs={"bpe_path": "OUT/secret.txt"})}},
    ),
}
CHECKPOINTS: dict[str, tuple[str, dict[str, Any]]] = {
    "trunk": ("clip", {"config": trunk("hf-hub:evil/x")}),
    "text tower": ("clip", {"config": text_tower(hf_model_name="evil/x")}),
    "byte pairs": ("clip", {"config": text_tower(tokenizer_kwargs={"bpe_path": "OUT/secret.txt"})}),
    "architecture": ("timm", {"config": {"architecture": "hf-hub:evil/x"}}),
    "pretrained": (
        "timm",
        {"config": {"model_args": {"pretrained": True}, "pretrained_cfg": {"hf_hub_id": "evil/x"}}},
    ),
    "kernel": ("two towers", {"config": {"text_config": {"attn_implementation": "evil/x"}}}),
    "processor": (
        "vit",
        {
            "preprocess": {
                "processor": {"image_processor_type": "OneFormerImageProcessor", "repo_path": "evil/x"},
            }
        },
    ),
    "special tokens": (
        "bert",
        {"preprocess": {"tokenizer": {"special_tokens": {"vocab": "OUT/secret.txt", "gguf_file": "OUT/secret.gguf"}}}},
    ),
}


# --- making them ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The honest folders, and the checkpoints that are made of them."""
    folder = tmp_path_factory.mktemp("honest")
    for name, variant in (("bert", "bert"), ("vit", "hf-vit"), ("clip", "clip"), ("two towers", "hf-clip")):
        published(variant, folder / name)
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    for name, kind in (("words", "BertTokenizer"), ("pairs", "RobertaTokenizer")):
        shutil.copytree(folder / "bert", folder / name)
        (folder / name / "tokenizer.json").unlink()
        special = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
        dump(folder / name / TOKENIZER, {"tokenizer_class": kind, "model_max_length": 16, **special})
    (folder / "words/vocab.txt").write_text("\n".join(tokens))
    dump(folder / "pairs/vocab.json", {token: number for number, token in enumerate([*tokens, "f", "i", "fi"])})
    (folder / "pairs/merges.txt").write_text("#version: 0.2\nf i\n")
    dump(folder / "vit" / IMAGES, {"image_processor_type": "ViTImageProcessor", "size": {"height": 16, "width": 16}})
    with_older_names(folder / "bert", folder / "older")

    prune = ["--method", "magnitude", "--keep", "2", "--layout", "zeroed", "-q"]
    assert main(["prune", TIMM, *prune, "-o", f"{folder / 'timm'}/"]) == 0
    for name in ("bert", "clip", "timm", "vit", "two towers"):
        assert main(["prune", str(folder / name), *prune, "-o", str(folder / f"{name}.st")]) == 0
    return folder


def with_older_names(folder: Path, older: Path) -> None:
    """A copy of a BERT by whose names of norms only the library can tell what is meant."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(folder, older)
    tensors = load_file(older / "model.safetensors")
    renamed = {}
    for name, tensor in tensors.items():
        renamed[name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta")] = tensor
    save_file(renamed, older / "model.safetensors", {"format": "pt"})


def dump(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document), encoding="utf-8")


def merged(document: Any, entries: Any, outside: Path) -> Any:
    """A document with entries changed at any depth, and those that are None removed."""
    if isinstance(entries, str):
        return entries.replace("OUT", str(outside))
    if isinstance(entries, list):
        return [merged(None, entry, outside) for entry in entries]
    if not isinstance(entries, Mapping):
        return entries
    changed = dict(document) if isinstance(document, Mapping) else {}
    for key, value in entries.items():
        changed.pop(key, None)
        if value is not None:
            changed[key] = merged((document or {}).get(key), value, outside)
    return changed


def canaries(outside: Path, honest: Path) -> None:
    """The files outside, which are what a library expects there, with the canary in each."""
    outside.mkdir()
    secret = f"SECRET={CANARY}"
    for name in ("secret.txt", "secret.model", "secret.gguf"):
        (outside / name).write_text(f"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n{secret}\n")
    tokenizer = read_json(honest / "bert/tokenizer.json")
    tokenizer["model"]["vocab"][CANARY] = len(tokenizer["model"]["vocab"])
    dump(outside / "tokenizer.1.0.json", tokenizer)
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "f", "i", "fi", CANARY]
    dump(outside / "vocab.json", {name: number for number, name in enumerate(names)})
    (outside / "merges.txt").write_text(f"#version: 0.2\nf i\n{CANARY} f\n")
    config = read_json(honest / "timm" / CONFIG)
    dump(outside / CONFIG, {**config, "label_names": [CANARY, "b"]})
    dump(outside / IMAGES, {"image_processor_type": "ViTImageProcessor", "size": {"height": 16, "width": 16}})
    dump(outside / "c.json", {"0": {"name": CANARY, "isthing": 1}})
    shutil.copy(honest / "timm/model.safetensors", outside / "model.safetensors")
    for file in outside.iterdir():
        os.utime(file, (0, file.stat().st_mtime))


def hostile(name: str, honest: Path, place: Path) -> Path:
    """A hostile folder."""
    base, files = FOLDERS[name]
    folder = place / "folder"
    shutil.copytree(honest / base, folder)
    for file_name, entries in files.items():
        file = folder / file_name
        if not isinstance(entries, dict):
            file.unlink(missing_ok=True)
        if isinstance(entries, str):
            file.symlink_to(merged(None, entries, place / "outside"))
        if isinstance(entries, dict):
            document = read_json(file) if file.exists() else {}
            dump(file, merged(document, entries, place / "outside"))
    return folder


def hostile_checkpoint(name: str, honest: Path, place: Path) -> Path:
    """A hostile checkpoint."""
    base, entries = CHECKPOINTS[name]

    def change(document: dict[str, Any]) -> None:
        document.update(merged(document, entries, place / "outside"))

    return described(honest / f"{base}.st", place / "checkpoint.st", change)


# --- in this process --------------------------------------------------------------------------------------------------


class Connected(BaseException):
    """Somebody has asked the network; no library takes this for an error that it could try again after."""


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network on which to ask for anything is a failure of the test; a hub that may be asked."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise Connected

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)


def notices_reading(place: Path) -> bool:
    """Whether the file system notes when a file was last read, if it was not for long."""
    probe = place / "probe"
    probe.write_text("a")
    os.utime(probe, (0, probe.stat().st_mtime))
    probe.read_text()
    return probe.stat().st_atime != 0


def look_at(path: Path) -> str:
    """What hydractl makes of a model: its description, with all that its library builds; or its error."""
    try:
        source = open_source(str(path), ModelOptions(bodies=True))
        assert source.sites
        source.family.collate(source.description.preprocess)
    except HydraError as error:
        return f"{error.message} {error.problems} {error.hint}"
    return json.dumps(source.description.to_json())


def check(path: Path, outside: Path) -> None:
    said = look_at(path)
    assert CANARY not in said
    if notices_reading(outside.parent):
        assert [file.name for file in outside.iterdir() if file.stat().st_atime != 0] == []


@pytest.mark.fault(85, 86)
@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_leads_nowhere(name: str, honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    canaries(tmp_path / "outside", honest)
    folder = hostile(name, honest, tmp_path)
    monkeypatch.chdir(folder)  # which relative paths go by
    check(folder, tmp_path / "outside")


@pytest.mark.fault(85, 86)
@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_leads_nowhere(name: str, honest: Path, tmp_path: Path) -> None:
    canaries(tmp_path / "outside", honest)
    check(hostile_checkpoint(name, honest, tmp_path), tmp_path / "outside")


@pytest.mark.fault(85, 86)
@pytest.mark.parametrize("name", ["bert", "words", "pairs", "older", "vit", "clip", "timm", "two towers"])
def test_what_the_hostile_ones_are_made_of_opens(name: str, honest: Path) -> None:
    assert open_source(str(honest / name), ModelOptions(bodies=True)).sites


@pytest.mark.fault(85)
def test_the_links_of_a_hub_cache_are_followed(honest: Path, tmp_path: Path) -> None:
    repository = tmp_path / "models--org--bert"
    snapshot = repository / "snapshots/0123"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for number, file in enumerate(sorted((honest / "words").iterdir())):
        shutil.copy(file, repository / f"blobs/{number}")
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    assert look_at(snapshot) == look_at(honest / "words")
    (tmp_path / "copy").mkdir()
    for file in snapshot.iterdir():  # as older versions of the hub's client fill a folder
        (tmp_path / "copy" / file.name).symlink_to(os.path.realpath(file))
    assert look_at(tmp_path / "copy") == look_at(honest / "words")


# --- commands, watched from outside -----------------------------------------------------------------------------------

CHILD = """
import json, os
from pathlib import Path
import tests.pico
from hydractl.cli.app import main

for name, commands in json.loads(Path("commands.json").read_text()).items():
    for words in commands:
        os.access(f"/now/{name}/{words[0]}", 0)
        try:
            code = main(words)
        except BaseException as error:
            code = repr(error)
        os.access("/now/nothing", 0)
        print(f"== {name} {words[0]} {code}", flush=True)
"""


def commands_for(model: str, number: int, reads_text: bool) -> Iterator[list[str]]:
    """Commands of most verbs on a model, as cheap as they can be."""
    data = "texts.csv" if reads_text else "images.npz"
    out = f"out/{number}"
    yield ["--info", model]
    yield ["eval", model, "--test", data, "-o", f"{out}.json", "--allow-seen", "-q"]
    yield ["fuse", model, model, "-o", f"{out}.fused.st", "-q"]
    yield ["prune", model, "--method", "magnitude", "--keep", "1", "-o", f"{out}.pruned.st", "-q"]
    yield ["predict", model, data, "-o", f"{out}.jsonl", "-q"]
    yield ["finetune", model, "--train", data, "--steps", "1", "-o", f"{out}.tuned.st", "-q"]
    folder = ["--layout", "zeroed", "-o", f"{out}-folder/"]
    yield ["prune", model, "--method", "magnitude", "--keep", "1", *folder, "-q"]
    yield ["export", model, "-o", f"{out}.pt2", "--dry-run", "-q"]
    yield ["bench", model, "--batch-size", "1", "--rounds", "1", "--warmup", "0", "-o", f"{out}.bench.json", "-q"]


def watched(command: list[str], trace: Path) -> list[str]:
    """The command under strace; without one, in a network of its own where that can be made."""
    if shutil.which("strace"):
        return ["strace", "-f", "-qq", "-s", "300", "-e", "trace=%file,%network", "-o", str(trace), *command]
    alone = ["unshare", "-rn"]
    with contextlib.suppress(OSError):
        if subprocess.run([*alone, "true"], capture_output=True).returncode == 0:
            return [*alone, *command]
    return command


def what_was_touched(trace: str) -> set[str]:
    """Each command that opened a file outside or asked a network, and what."""
    now, touched = "nothing", set()
    for line in trace.splitlines():
        marker = re.search(r'access[0-9at]*\((?:AT_FDCWD, )?"/now/([^"]*)"', line)
        if marker is not None:
            now = marker[1]
            continue
        asks = "connect(" in line and "sa_family" in line and "AF_UNIX" not in line
        opens = re.search(r"\bopen(at2?)?\(", line) and ("outside/" in line or "/proc/self/environ" in line)
        if now != "nothing" and (asks or opens):
            touched.add(f"{now}: {line[:200]}")
    return touched


@pytest.mark.long
@pytest.mark.fault(85, 86)
def test_no_command_looks_elsewhere(honest: Path, tmp_path: Path) -> None:
    canaries(tmp_path / "outside", honest)
    work = tmp_path / "work"  # from where relative paths lead outside, too
    (work / "out").mkdir(parents=True)
    shutil.copy(CORPUS / "beside/images.npz", work)
    (work / "texts.csv").write_text("text,label\na fine film,0\nso dull,1\n")
    models: list[tuple[str, str, Path]] = []
    for names, make in ((FOLDERS, hostile), (CHECKPOINTS, hostile_checkpoint)):
        for name, (base, _) in names.items():
            made = make(name, honest, tmp_path)
            models.append((name, base, made.rename(work / f"m{len(models)}{made.suffix}")))
    # What an honest one does, so that the others are known to get as far.
    models.append(("honest", "bert", Path(shutil.copytree(honest / "bert", work / "honest"))))
    commands = {}
    for number, (name, base, path) in enumerate(models):
        reads_text = base in ("bert", "words", "pairs", "older")
        commands[f"{number} {name}"] = list(commands_for(path.name, number, reads_text))
    dump(work / "commands.json", commands)

    environment = {key: value for key, value in os.environ.items() if key != "HF_HUB_OFFLINE"}
    environment |= {"PYTHONPATH": str(ROOT), "HF_ENDPOINT": "http://127.0.0.1:9", "SECRET": CANARY}
    environment |= {"HF_HOME": str(tmp_path / "hub"), "NO_COLOR": "1"}
    trace = tmp_path / "trace"
    command = watched([sys.executable, "-c", CHILD], trace)
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True)
    said = done.stdout + done.stderr
    codes = re.findall(r"^== (.*) (\S+) (.*)$", done.stdout, re.MULTILINE)
    assert len(codes) == sum(map(len, commands.values())), said[-3000:]
    assert {code for name, _, code in codes if name.endswith(" honest")} == {"0"}, said[-3000:]
    assert {code for _, _, code in codes} <= {"0", "2", "3"}
    assert CANARY not in said and "Traceback" not in said
    for file in (work / "out").rglob("*"):
        assert not file.is_file() or CANARY.encode() not in file.read_bytes(), file
    if trace.exists():
        calls = trace.read_text(errors="replace")
        assert all(f'"/now/{name}/{verb}"' in calls for name, verb, _ in codes)
        assert what_was_touched(calls) == set()
        assert what_was_touched(f'{calls}\n1 access("/now/a/b", F_OK) = -1\n1 openat(AT_FDCWD, "../outside/a", 0) = 3')
