"""Files, names and streams that once made a command hang, swell, say "internal" or lose a result.

Each command runs in a process of its own with little memory and time: what takes more is killed.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import resource
import shutil
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hydractl.cli.app import main
from hydractl.files.header import read_header
from tests import pico, running
from tests.forked import ROOT, Forked
from tests.fuzz.readers import CORPUS
from tests.running import control_characters, read_json
from tests.spread import marked_long, marked_release

SECONDS, MEMORY = 15, 1 << 30
Attack = Callable[..., tuple[int, str, str]]
PRUNE = ["--method", "magnitude", "--keep", "1", "-o", "out.st", "--force"]
MEASURE = ["--allow-seen", "--force", "-q"]
REPORT = ["report", "e.json", "--html", "r.html", "--force", "-q"]
EVAL = ["eval", "vit.st", "--allow-seen", "--test"]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, its data and a BERT; the libraries that they need are imported."""
    folder = tmp_path_factory.mktemp("small")
    shutil.copytree(CORPUS / "beside", folder, dirs_exist_ok=True)
    for part in ("hf-config", "hf-tokenizer", "hf-tokenizer-config", "hf-weights"):
        shutil.copytree(CORPUS / part, folder / "bert", dirs_exist_ok=True)
    assert main(["prune", str(folder / "bert"), "--dry-run", "--method", "magnitude", "--keep", "1"]) == 0
    assert (
        main(["eval", str(folder / "vit.st"), "--allow-seen", "--test", str(folder / "images.npz"), "--dry-run"]) == 0
    )
    return folder


@pytest.fixture
def here(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(small, tmp_path, dirs_exist_ok=True))


@pytest.fixture
def attack(here: Path) -> Attack:
    """Runs a command within the limits; its exit code and both streams, having looked for what no command may say."""

    def run(*words: str) -> tuple[int, str, str]:
        process = Forked(words)
        used = int(Path(f"/proc/{process.pid}/statm").read_text().split()[0]) * resource.getpagesize()
        for kind, most in ((resource.RLIMIT_AS, used + MEMORY), (resource.RLIMIT_CPU, SECONDS)):
            resource.prlimit(process.pid, kind, (most, most))
        out, err = process.communicate()
        assert process.returncode in (0, 2, 3, 4, 5, 6), (process.returncode, err[-2000:])
        assert "internal" not in err and "Traceback" not in err
        assert "out of memory" not in err
        assert not control_characters(out + err, allowed="\n\t")
        assert max(map(len, err.splitlines()), default=0) < 3000
        assert process.returncode is not None
        return process.returncode, out, err

    return run


def described(name: str, change: Callable[[dict[str, Any]], None]) -> None:
    """A copy of ``vit.st`` whose description is another."""
    running.described(Path("vit.st"), Path(name), change)


def dump(name: str, document: Any) -> str:
    Path(name).write_text(json.dumps(document))
    return name


# --- small files, much work -------------------------------------------------------------------------------------------


@pytest.mark.fault(43)
@pytest.mark.parametrize("sites", [*marked_long([1]), 3000])
def test_a_mask_of_heads_without_end(sites: int, attack: Attack) -> None:
    heads = list(range(60_000 // sites))
    entries = {f"blocks.{i}.attn": {"heads": 2**31, "kept": heads} for i in range(sites)}
    name = dump("m.mask.json", {"schema": "hydractl.mask/1", "sites": entries})
    assert attack("--info", name)[0] == 3
    assert attack("prune", "vit.st", "--mask", name, "--dry-run")[0] == 3


@pytest.mark.fault(43)
@pytest.mark.parametrize(
    "arguments",
    [
        *({"depth": 10**6}, {"img_size": 1 << 14}, {"depth": "2"}),
        *marked_long([{"num_heads": 10**6}, {"embed_dim": 10**7}]),
    ],
)
def test_a_configuration_without_bounds(arguments: dict[str, Any], attack: Attack) -> None:
    described("x.st", lambda document: document["config"]["model_args"].update(arguments))
    assert attack("--info", "x.st")[0] == 0
    assert attack("prune", "x.st", *PRUNE)[0] == 3


@pytest.mark.fault(43)
@pytest.mark.parametrize(
    "key", ["num_hidden_layers", "vocab_size", *marked_long(["max_position_embeddings", "num_attention_heads"])]
)
def test_a_folder_without_bounds(key: str, attack: Attack) -> None:
    config = read_json("bert/config.json")
    dump("bert/config.json", {**config, key: 10**6})
    assert attack("--info", "bert")[0] == 3
    assert attack("prune", "bert", *PRUNE)[0] == 3


SIZES = {
    "eva": ("eva02_tiny_patch14_224", {"img_size": 8192}, "cuts images into"),
    "beit": ("beit_base_patch16_224", {"img_size": 1024}, "asks for tables of 6,1"),
    "swin": ("swin_tiny_patch4_window7_224", {"img_size": 8192}, "cuts images into"),
}


@pytest.mark.fault(93)
@pytest.mark.parametrize("kind", SIZES)
def test_tables_that_only_a_configuration_asks_for(kind: str, attack: Attack) -> None:
    name, claims, said = SIZES[kind]
    blocks = (
        {"depths": [2, 1], "num_heads": [3, 3], "patch_size": 4} if "swin" in kind else {"depth": 3, "num_heads": 3}
    )
    arguments = {"patch_size": 8, "embed_dim": 24} | blocks | claims

    def change(document: dict[str, Any]) -> None:
        document["config"] |= {"architecture": name, "model_args": arguments}

    described("x.st", change)
    code, _, err = attack("prune", "x.st", *PRUNE)
    assert code == 3 and said in err


@pytest.mark.fault(93)
def test_weights_that_only_a_configuration_asks_for(attack: Attack, tmp_path: Path) -> None:
    folder = pico.published("hf-vit", tmp_path / "small")
    config = read_json(folder / "config.json")
    dump("small/config.json", {**config, "hidden_size": 9216})
    code, _, err = attack("prune", "small", *PRUNE)
    assert code == 3 and "does not hold the weights of ViTForImageClassification" in err


@pytest.mark.fault(47)
@pytest.mark.long
def test_names_without_end(attack: Attack) -> None:
    Path("labels.txt").write_text("\n".join(f"class {i}" for i in range(100_000)))
    assert attack(*EVAL, "images.npz", "--labels", "labels.txt", "--dry-run")[0] == 2
    np.savez("many.npz", x=np.zeros((1000, 4, 4), np.uint8), y=np.arange(1000), classes=[f"c{i}" for i in range(1000)])
    assert attack(*EVAL, "many.npz", "-o", "e.json")[0] == 3
    described("wide.st", lambda document: document.update(labels=[f"class {i}" for i in range(100_000)]))
    assert attack("eval", "wide.st", "--allow-seen", "--test", "images.npz", "-o", "e.json")[0] == 3


def bomb_text(name: str, start: bytes) -> str:
    many = gzip.compress(b"a" * (10 << 20), compresslevel=1)
    Path(name).write_bytes(gzip.compress(start) + many * 120)
    return name


def bomb_csv() -> str:
    return bomb_text("b.csv.gz", b"text,label\n")


def bomb_jsonl() -> str:
    return bomb_text("b.jsonl.gz", b'{"text": "')


def bomb_npz() -> str:
    np.savez_compressed("b.npz", x=np.zeros((75_000_000, 4, 4), np.uint8))
    return "b.npz"


def bomb_png() -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    deflate = zlib.compressobj(1)
    rows = b"".join(deflate.compress(bytes(100 * (13_300 * 3 + 1))) for _ in range(133)) + deflate.flush()
    size = struct.pack(">II", 13_300, 13_300)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size + b"\x08\x02\0\0\0") + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def bomb_image() -> str:
    Path("images").mkdir()
    Path("images/b.png").write_bytes(bomb_png())
    return "images"


def bomb_parquet() -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"image": [bytes(30 << 20)] * 40}), "b.parquet", compression="zstd", use_dictionary=True)
    return "b.parquet"


@pytest.mark.long
@pytest.mark.fault(50)
@pytest.mark.parametrize("make", [bomb_csv, bomb_image, *marked_release([bomb_jsonl, bomb_npz, bomb_parquet])])
def test_a_bomb(make: Callable[[], str], here: Path, attack: Attack) -> None:
    # An image just below Pillow's limit, and the one of an array that is asked for, are read within that memory.
    assert attack(*EVAL, make(), "--limit", "1", "-o", "e.json")[0] == (0 if make in (bomb_image, bomb_npz) else 3)


# --- what libraries do with a file ------------------------------------------------------------------------------------


@pytest.mark.fault(40, 44)
def test_no_library_prints_what_a_file_says(attack: Attack) -> None:
    config = read_json("bert/config.json")
    dump("bert/config.json", {**config, "model_type": "\x1b[31mred", "\x1b[2J": 1})
    attack("prune", "bert", *PRUNE)
    dump("bert/config.json", config)
    tokenizer = read_json("bert/tokenizer_config.json")
    for token in ({"__type": "AddedToken", "content": "[PAD]", "\x1b[31m": 1}, {"content": "a", "\x1b[31m": 1}):
        dump("bert/tokenizer_config.json", {**tokenizer, "pad_token": token, "added_tokens_decoder": {"0": token}})
        assert attack("prune", "bert", *PRUNE)[:2] == (3, "")


@pytest.mark.fault(42)
@pytest.mark.parametrize(
    "part",
    [
        {"normalizer": {"type": "Replace", "pattern": {"String": ""}, "content": "a"}},
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a*)*b"}, "behavior": "Isolated", "invert": False}},
        {"model": {"type": "Unigram", "unk_id": 7, "vocab": []}},
        {"added_tokens": [{"id": 2**31, "content": "", "special": True}]},
        *marked_release([
            {"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x", "type_id": 0}}],
                                "pair": [], "special_tokens": {}}},
            {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}},
            {"model": {"type": "WordPiece", "vocab": {}, "unk_token": "x", "continuing_subword_prefix": "",
                       "max_input_chars_per_word": 2**62}},
            {"model": {"type": "WordPiece", "vocab": {"[UNK]": 2**31 - 1}, "unk_token": "[UNK]",
                       "continuing_subword_prefix": "##", "max_input_chars_per_word": 100}},
        ]),
    ],
    ids=lambda part: json.dumps(part)[:30],
)  # fmt: skip
@pytest.mark.long
def test_a_tokenizer_that_panics_or_does_not_end(part: dict[str, Any], attack: Attack) -> None:
    document = read_json("bert/tokenizer.json")
    dump("bert/tokenizer.json", {**document, **part})
    attack("prune", "bert", *PRUNE)
    Path("t.csv").write_text("text,label\naaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa b,one\n")
    attack("eval", "bert", "--test", "t.csv", "-o", "e.json", "--force")


@pytest.mark.fault(26, 46)
def test_images_of_any_mode(attack: Attack) -> None:
    Path("set").mkdir()
    for number, mode in enumerate(["LAB", "YCbCr", "F", "I", "I;16", "I;16B", "CMYK", "PA"]):
        with contextlib.suppress(OSError, KeyError):  # Pillow does not write all of them
            Image.new(mode, (4, 4)).save(f"set/{number}.tiff")
    assert attack(*EVAL, "set", "-o", "e.json", "--on-bad", "skip")[0] in (0, 3)


@pytest.mark.fault(48)
@pytest.mark.parametrize("labels", [[b"\xff", b"a"], [2**63, 1], *marked_long([[[1], [2]], [1.5, 2.0], [None, None]])])
def test_a_parquet_of_odd_labels(labels: list[Any], attack: Attack) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    column = pa.array(labels, pa.uint64()) if labels[0] == 2**63 else pa.array(labels)
    pq.write_table(pa.table({"image": [Path("i.png").read_bytes()] * 2, "label": column}), "p.parquet")
    assert attack(*EVAL, "p.parquet", "-o", "e.json")[0] in (0, 3)


# --- results that must not be lost ------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.fault(35, 45)
def test_names_that_are_no_utf8(attack: Attack) -> None:
    data, model = os.fsdecode(b"im\xe9ges.npz"), os.fsdecode(b"v\xfft.st")
    try:
        shutil.copy("images.npz", data)
    except OSError:
        pytest.skip("this file system wants UTF-8")
    shutil.copy("vit.st", model)
    out = os.fsdecode(b"\xfe.json")
    assert attack("eval", model, "--test", data, "-o", out, "--predictions", "p.st", *MEASURE)[0] == 0
    assert attack("report", out, *REPORT[2:])[0] == 0
    assert read_json(out)["models"][0]["id"]["n"] == 6
    assert attack("extract-circuit", model, "--val", data, "--objective", "acc", "--budget", "1", "-q")[0] == 0
    assert attack("prune", model, "--method", "magnitude", "--keep", "1", "-q")[0] == 0
    assert attack("finetune", model, "--train", data, "--steps", "1", "-o", "t.st", "-q")[0] == 0


@pytest.mark.fault(8, 51)
def test_an_intact_header_over_zeros(attack: Attack) -> None:
    whole = Path("vit.st").read_bytes()
    start = 8 + struct.unpack("<Q", whole[:8])[0]
    Path("z.st").write_bytes(whole[:start] + bytes(len(whole) - start))
    assert attack("prune", "z.st", *PRUNE)[0] == 3
    code, _, said = attack("fuse", "z.st", "vit.st", "-o", "f.st")
    assert code == 3 and "z.st" in said


@pytest.mark.fault(54)
def test_a_mask_beside_other_weights(attack: Attack) -> None:
    """A kill between the two renames of ``prune --force`` leaves the new weights beside the old mask."""
    assert attack("prune", "vit.st", "--method", "magnitude", "--keep", "1", "-o", "a.st", "-q")[0] == 0
    old = Path("a.mask.json").read_bytes()
    assert attack("prune", "vit.st", "--method", "random", "--keep", "2", "-o", "a.st", "--force", "-q")[0] == 0
    Path("a.mask.json").write_bytes(old)
    said = attack("prune", "vit.st", "--mask", "a.mask.json", "-o", "b.st")[2]
    assert "a.mask.json is not the mask of a.st beside it" in said


@pytest.mark.fault(29, 56)
def test_logits_that_overflow(attack: Attack) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file("vit.st")
    tensors["head.weight"].fill_(3e38)
    save_file(tensors, "big.st", read_header(Path("vit.st")).metadata)
    assert attack("fuse", "big.st", "vit.st", "-o", "f.st")[0] == 6
    assert attack("eval", "big.st", "--allow-seen", "--test", "images.npz", "-o", "e.json")[0] == 6


# --- odds and ends ----------------------------------------------------------------------------------------------------


@pytest.mark.fault(57)
@pytest.mark.parametrize(
    "words",
    [
        ["--info", "x" * 5000],
        ["--info", "unreadable.st"],
        ["--info", "deep.json"],
        [*EVAL, "~nosuchuser/x"],
        ["prune", "timm:vit_tiny_patch16_224?pretrained=0&depth=2020-13-45", *PRUNE],
        ["eval", "vit.st", "--test", "images.npz", "--seed", "x" * 5000],
        ["prune", "vit.st", "--config", "long.yaml", "--dry-run"],
        *marked_long(
            [
                [*EVAL, "images.npz", "--labels", "~nosuchuser/x"],
                ["prune", "timm:vit_tiny_patch16_224?pretrained=0&depth=1000000", *PRUNE],
            ]
        ),
    ],
    ids=lambda words: " ".join(words)[:40],
)
def test_one_line_for_what_makes_no_sense(words: list[str], attack: Attack) -> None:
    Path("unreadable.st").mkdir()
    Path("deep.json").write_text('{"a": ' + "[" * 100_000)
    Path("long.yaml").write_text(f"seed: {'a' * 5000}\n")
    assert attack(*words)[0] in (2, 3)


@pytest.mark.fault(43, 57)
def test_preprocessing_of_another_model(attack: Attack) -> None:
    large = {"input_size": [1, 1 << 14, 1 << 14]}
    for change in ({"mean": ["a"]}, {"mean": [10**400]}, {"input_size": [3, 4, 4]}, {"mean": "x"}, {"std": [0]}, large):
        described("x.st", lambda document, change=change: document["preprocess"].update(change))
        assert attack("eval", "x.st", "--allow-seen", "--test", "images.npz", "-o", "e.json", "--force")[0] in (3, 6), (
            change
        )


@pytest.mark.fault(57)
@pytest.mark.long
def test_standard_input_that_is_closed(here: Path) -> None:
    command = f"{sys.executable} -m hydractl prune vit.st --scores - --remove 1 -o o.st 0<&-"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, shell=True, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode in (2, 3) and "internal" not in done.stderr, done.stderr


@pytest.mark.long
@pytest.mark.fault(57)
def test_a_name_of_five_hundred_characters(attack: Attack) -> None:
    name = "n" * 500
    assert attack("eval", f"={name}=vit.st", "--test", "images.npz", "-o", "e.json", *MEASURE)[0] == 3
    assert attack("eval", f"{name}=vit.st", "--test", "images.npz", "-o", "e.json", *MEASURE)[0] == 0
    assert attack(*REPORT)[0] == 0


# --- descriptions of much ---------------------------------------------------------------------------------------------


def of_sites(count: int, heads: int, members: int = 1, kept: int = 0) -> Callable[[dict[str, Any]], None]:
    """So many sites of so many heads, of which each member keeps the first ones."""

    def change(document: dict[str, Any]) -> None:
        names = [f"b{index}" for index in range(count)]
        document["kind"] = "pruned" if members == 1 else "fused"
        document["sites"] = [[name, heads] for name in names]
        document["members"] = [{"kept": {name: list(range(kept)) for name in names}}] * members

    return change


def of_values(document: dict[str, Any]) -> None:
    document["extra"] = {f"k{index}": {} for index in range(30_000)}
    document["provenance"] = {f"k{index}": [1] * 5 for index in range(15_000)}


def of_one_name(document: dict[str, Any]) -> None:
    names = ["x" * 200_000, *(f"b{index}" for index in range(2000))]
    document["sites"] = [[name, 3] for name in names]
    document["members"] = [{"kept": {name: [0] for name in names}}]


def of_depth(document: dict[str, Any]) -> None:
    text = '{"a":' * 400 + f"[{'1,' * 200_000}1]" + "}" * 400
    document["provenance"] = json.loads(text)


MUCH = {
    "sites": of_sites(16_000, 4096),
    "heads": of_sites(2, 2**31, members=2),
    "members": of_sites(1, 3, members=12_000),
    "pairs": of_sites(40, 60, members=200, kept=9),
    "values": of_values,
    "name": of_one_name,
    "depth": of_depth,
}


@pytest.mark.fault(66)
@pytest.mark.parametrize(
    ("change", "flags"),
    [
        *((MUCH[name], []) for name in ("sites", "pairs", "values", "depth")),
        *marked_long([*((MUCH[name], []) for name in ("heads", "members", "name")), (MUCH["pairs"], ["--json"])]),
    ],
    ids=["sites", "pairs", "values", "depth", "heads", "members", "name", "json"],
)
def test_a_header_that_describes_much(
    change: Callable[[dict[str, Any]], None], flags: list[str], attack: Attack
) -> None:
    described("x.st", change)
    code, out, _ = attack("--info", "x.st", *flags)
    assert code in (0, 3)
    assert len(out) < 20 * Path("x.st").stat().st_size


@pytest.mark.fault(66)
@pytest.mark.parametrize("flags", [[], *marked_long([["--json"]])], ids=["table", "json"])
@pytest.mark.long
def test_masks_and_circuits_of_much(flags: list[str], attack: Attack) -> None:
    mask = {f"b{index}": {"heads": 4096, "kept": []} for index in range(12_000)}
    steps = [{"site": f"b{index % 4000}", "head": index % 16} for index in range(8000)]
    documents = [
        {"schema": "hydractl.mask/1", "sites": mask},
        {"schema": "hydractl.circuit/2", "sites": {f"b{index}": 16 for index in range(4000)}, "removed": steps},
        {"schema": "hydractl.eval/2", "models": [{"name": "x" * 400_000}]},
    ]
    for document in documents:
        assert attack("--info", dump("m.json", document), *flags)[0] == 0
