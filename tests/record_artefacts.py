"""Records everything that hydractl writes, to show what a change of the code changes of it.

    python tests/record_artefacts.py OUT.json [--tree DIR] [--only NAME]
    python tests/record_artefacts.py --compare OLD.json NEW.json [--only NAME] [--rtol R]

The first form makes tiny models and data, runs every verb on them, and records each file, answer and message;
``--tree`` selects the checkout whose hydractl runs. The second form prints what differs, is missing or is new, and
exits with 1 if there is anything. Nothing is used of hydractl but its command line; models and data come from the
stock libraries. What holds clocks (measurements, logs) is recorded without its numbers. ``HYDRACTL_DATA`` adds a real
checkpoint. Both records have to come from one machine: rounding differs between machines.

JSON is recorded and compared by value, in any order of its keys. ``--rtol`` lets numbers differ by so much of the
larger one, but never two whole numbers, such as heads. Tensors (weights, predictions) and files of other forms are
digests, and text is lines: equal or not. A record is one line of JSON, in which what was renamed on purpose can be
replaced before.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import hashlib
import io
import json
import math
import os
import random
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Record = dict[str, Any]
"""What ``--compare`` walks through: the artefacts, messages and help texts by name, each of them JSON values."""

REAL_DATA = os.environ.get("HYDRACTL_DATA")
CLASSES = 5
WORDS = ["a", "film", "fine", "dull", "not", "so", "##s", "un", "##kind", "!", ".", ","]

# --- the commands -----------------------------------------------------------------------------------------------------
# One a line, run in a folder that holds `model`, the data of DATA and a hydra.yaml; X is the ending of the data.

COMMON = """
score model --method taylor --data cal.X --samples 8 -o taylor.scores.json
score model --method taylor --order sequential --keep 2 --data cal.X -o sequential.scores.json
score model --method magnitude -o magnitude.scores.json
score model --method gate --data cal.X --seed 3 --samples 8
score model --method random --seed 1 -o - --json
score model --method taylor --data cal.X --dry-run --json
prune model --method taylor --keep 2 --data cal.X --samples 8 -o a.st --json
prune model --method taylor --order one-shot --keep 2 --data cal.X --samples 8
prune model --scores taylor.scores.json --remove 1 -o b.st
prune model --scores taylor.scores.json --remove 2 --scope global --dry-run --json
prune model --scores magnitude.scores.json --remove 2 --scope global -o b-global.st
prune model --scores - --keep 2 -o b-piped.st < taylor.scores.json
prune model --method random --keep 2 --seed 1 -o r1.st
prune model --method random --keep 1 --seed 2 --layout zeroed -o r2.st
prune model --mask a.mask.json -o zeroed/
prune model --method magnitude --keep 2 --share-sites 1 --with a.mask.json -o shared.st
prune a.st --method magnitude --keep 1 --scope site -o twice.st
extract-circuit model --val val.X --ood-val ood.X --objective acc,ood,avg --keep 2 -o circuit.json --dry-run --json
extract-circuit model --val val.X --ood-val ood.X --objective acc,ood,avg --keep 2 -o circuit.json
extract-circuit model --val val.X --algorithm headmap --keep 2 -o headmap.json
extract-circuit model --val val.X --objective nll --budget 2 -o loss.json
extract-circuit model --val val.X --ood-val ood.X --approx lazy:2 --budget 2
extract-circuit model --val val.X --ood-val ood.X --ood-score energy --sites 1-2 --start-mask a.mask.json --budget 4 \
  -o s.json
prune model --circuit circuit.avg.json --keep 2 -o c.st
prune model --circuit circuit.acc.json --sample-from 3 --remove 2 --seed 1 -o c1.st
finetune a.st --train train.X --steps 3 --batch-size 4 -o a.tuned.st --log beside
finetune a.st --train train.X --val val.X --epochs 2 --lr 0.001 -o a.best.st --json
finetune a.st --train train.X --steps 2 --ensemble lora:2,4 -o a.lora.st
finetune a.st --train train.X --steps 2 --optimizer sgd --train-last 1 -o last.st
finetune a.st --train train.X --epochs 1 -o dry.st --dry-run --json
fuse a.st b.st c.st -o hydra.st --json
fuse a.st r1.st --merge none -o none.st
fuse a.st r1.st --merge mlp,norm -o part.st
fuse a.st r1.st -o dry.st --dry-run --json
eval one=model hydra.st seq=a.st+b.st --test test.X --ood near:near=near.X --ood far:far=far.X -o eval.json
eval hydra.st --test test.X --ood far=far.X --ood-score mi --predictions hydra.pred.st -o mi.eval.json
eval hydra.pred.st --ood-score entropy --bootstrap 20 --json
eval one=model hydra.st --test test.X --dry-run --json
bench model hydra.st --batch-size 1,2 --rounds 2 --warmup 0 -o bench.json --json
report fixed.json --json
--info a.mask.json b.mask.json c.mask.json --json
--info a.st b.st --json
"""

# Not particular to a family, so recorded for one.
MORE = """
score model --method cahp --data cal.X -o cahp.scores.json
prune model --method cahp --data cal.X -o cahp.st
prune model --method gate --keep 2 --data cal.X --order sequential -o gate.st
prune model --method magnitude --keep 2
extract-circuit model --val val.X --ood-val ood.X --share-from circuit.avg.json --share-sites 1 --keep 2 -o share.json
finetune a.st --train train.X --steps 2 --ensemble batch-ensemble:0.1 -o batch.st
finetune a.st --train train.X --steps 2 --ensemble deep:2 -o deep.st
finetune a.st r1.st --train train.X --val val.X --steps 2 --lr 0.01,0.001 -o tuned/ --json
finetune a.st --train train.X --steps 2 --init head --reset-head --config '{label_smoothing: 0.1}' \
  --freeze norm -o head.st
finetune a.st --train train.X --recipe default --epochs 1 --dropout 0.1 --accumulate 2 -o recipe.st
fuse a.st deep.0.st deep.1.st -o tuned-hydra.st
export hydra.st --format onnx,pt2 --json
eval one=model h=hydra.st --test test.X --ood far:far=far.X --bootstrap 20 -o r.json
report r.json --html r.html
eval hydra.st --test test.X --val val.X --ood-val o=ood.X --temperature fit --threshold ood:0.9 --conformal 0.2 \
  --allow-seen -o cal.eval.json
calibrate hydra.st --val val.X --ood-val o=ood.X --temperature fit --threshold ood:0.9 --conformal 0.2 -o cal.st --json
eval cal.st --test test.X --ood far=far.X -o applied.json
predict cal.st test.X -o cal.jsonl
eval cal.st --test test.X --temperature none --threshold score:0.5 --json
predict cal.st test.X -o cal.csv
eval hydra.st --test test.X --val val.X --temperature vector --conformal 0.2 --conformal-score aps \
  --threshold id:0.1 --json
eval a.st --test test.X --ood far=far.X --predictions a.pred.st --json
eval deep=a.st+b.st --test test.X --ood far=far.X --predictions deep.pred.st --json
eval one=a.pred.st deep=deep.pred.st --ood-score variance --bootstrap 20 -o joined.json
eval hydra.st --test test.X --mc-dropout 0.1 --passes 3 --ood far=far.X --ood-score energy --json
report eval.json --html again.html --json
eval one=model hydra.st --test test.X --require id.accuracy>=2 --json
bench model hydra.st --compare stock,members,deep --rounds 1 --warmup 0 --dry-run --json
score --data cal.X --method taylor -v
finetune model --train train.X --steps 2 --init random --ensemble packed:2,2 -o packed.st
finetune model --train train.X --steps 2 --ensemble mimo:2 -o mimo.st
finetune model --train train.X --steps 2 --ensemble classifiers:2 -o classifiers.st
finetune model --train train.X --val val.X --ensemble laplace -o laplace.st --json
eval packed=packed.1.st+packed.2.st mimo=mimo.1.st+mimo.2.st laplace=laplace.st \
  --test test.X --ood far=far.X -o ways.json
eval one=model hydra.st --test test.X --ood far=far.X --train train.X \
  --ood-score mahalanobis,rmd,knn,vim,react,ash --knn-k 3 -o scores.json
study model --train train.X --val many.X --ood-val o=many-ood.X --test test.X --ood far:far=far.X --bootstrap 100 \
  --rows whole-avg,circuits,taylor --no-timed -o study --dry-run --json
study model --train train.X --val many.X --ood-val o=many-ood.X --test test.X --ood far:far=far.X --bootstrap 100 \
  --rows whole-avg,circuits,taylor --no-timed -o study
"""

IMAGES = """
eval model --test folder/ --labels labels.txt -o folder.json
eval model --test list.txt?root=folder --labels labels.txt --label-map names.json --json
predict model list.txt?root=folder --labels labels.txt -o list.csv
eval model --test test.X --corruptions fog,gaussian_noise --severities 1,5 -o corrupted.json
finetune a.st --train train.X --augment crop:0.5,flip,randaugment --steps 2 -o augmented.st
prune timm:vit_tiny_patch16_224?pretrained=0&img_size=16&patch_size=8&embed_dim=24&depth=2&num_heads=3&num_classes=5 \
  --method random --keep 2 --seed 4 -o random.st
prune model/model.safetensors --arch \
  timm:vit_tiny_patch16_224?img_size=16&patch_size=8&embed_dim=24&depth=3&num_heads=3&num_classes=5 --method magnitude \
  --keep 2 -o bare.st
"""

PAIRS = """
prune model --method taylor --keep 2 --data pairs.tsv -o pairs.st
eval hydra.st --test pairs.tsv --max-length 12 --json
predict hydra.st pairs.tsv --max-length 12 -o pairs.jsonl
export hydra.st --format pt2 --json
"""

TOWERS = """
prune model --method magnitude --keep 2 --tower visual --scope site -o visual.st
prune model --method taylor --keep 2 --tower text --data cal.X -o text.st
finetune a.st --train captions:captions.jsonl --loss contrastive --steps 2 --batch-size 4 -o contrastive.st
fuse visual.st text.st -o towers.st
export towers.st
eval model --test test.X --labels other.txt --prompt "a {}" --json
eval model --test test.X --ood far=far.X --train train.X --ood-score vilu,msp --json
"""

REAL = """
score model --method taylor --data sst2_train.jsonl.gz --samples 16 -o taylor.scores.json
prune model --scores taylor.scores.json --keep 8 -o a.st
prune model --method magnitude --keep 8 -o b.st
extract-circuit model --val sst2_train.jsonl.gz --ood-val trec.jsonl.gz --limit 8 --budget 1 -o circuit.json
finetune a.st --train sst2_train.jsonl.gz --limit 16 --steps 2 --train-last 1 -o tuned.st
fuse a.st b.st -o hydra.st --json
eval one=model hydra.st --test sst2_test.jsonl.gz --ood trec=trec.jsonl.gz --limit 16 -o eval.json
"""

MESSAGES = """
prune missing.st --method magnitude --keep 2
prune model --method magnitude --keep 2 -o a.st
prune model --mask wrong.mask.json -o w.st
prune model --mask taylor.scores.json -o w.st
prune model --method magnitude --keep 9 -o w.st
prune model --method magnitude --kep 2
prune model -o w.st
prune model --method taylor --keep 2 -o w.st
prune damaged.st --method magnitude --keep 2 -o w.st
prune weights.bin --method magnitude --keep 2 -o w.st
score model --method taylor --data missing.npz -o w.json
score model --method taylor --data ood.X -o w.json
extract-circuit model --val val.X --keep 2
finetune a.st --train train.X --steps 2 --epochs 2 --lr -1
fuse a.st -o w.st
fuse a.st other.st -o w.st
eval hydra.st --test val.X
eval a.st --test test.X --require nonsense>=1
eval a.st --test test.X --ood far=far.X --threshold ood:0.9
bench missing.st other.st
report damaged.st
--info model
--info damaged.st
prnue
"""

HELP = ["", "score", "extract-circuit", "prune", "finetune", "fuse", "eval", "bench", "--info"]

# What is measured, and recorded without its numbers, but for those that no clock moves.
MEASURED = ("bench.json", ".log.jsonl")
COUNTS = ("batch_size", "params", "macs", "checkpoint_bytes", "rounds", "members")
CLOCKS = ("time", "seconds")  # recorded nowhere

MOST_OF_A_LINE = 400  # of what is printed; a page has lines of many thousand characters


# --- models and data --------------------------------------------------------------------------------------------------


def make_timm(folder: Path) -> None:
    import timm

    options = {"img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 3, "num_classes": CLASSES}
    model = drawn(timm.create_model("vit_tiny_patch16_224", pretrained=False, **options))
    timm.models.save_for_hf(model, str(folder), model_config={"model_args": options}, safe_serialization=True)


def make_hf(name: str, kind: str, **settings: Any) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        import transformers

        config = getattr(transformers, f"{name}Config")(**settings, num_labels=CLASSES)
        drawn(getattr(transformers, f"{name}For{kind}Classification")(config)).save_pretrained(folder)
        if "vocab_size" in settings:
            tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
            vocabulary = {token: number for number, token in enumerate(tokens)}
            transformers.BertTokenizer(vocab=vocabulary, model_max_length=16).save_pretrained(folder)
        else:
            transformers.ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(folder)

    return make


def make_clip(folder: Path) -> None:
    import dataclasses

    import open_clip
    import safetensors.torch

    vision = {"image_size": 16, "patch_size": 8, "width": 24, "head_width": 8, "layers": 2, "mlp_ratio": 2.0}
    text = {"context_length": 16, "vocab_size": 49408, "width": 24, "heads": 3, "layers": 1, "mlp_ratio": 2.0}
    model = drawn(open_clip.CLIP(embed_dim=16, vision_cfg=vision, text_cfg=text))
    preprocess = dataclasses.asdict(open_clip.transform.PreprocessCfg(size=16))
    config = {"model_cfg": {"embed_dim": 16, "vision_cfg": vision, "text_cfg": text}, "preprocess_cfg": preprocess}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    safetensors.torch.save_file(model.state_dict(), folder / "open_clip_model.safetensors", {"format": "pt"})


def make_real(folder: Path) -> None:
    shutil.copytree(Path(str(REAL_DATA), "checkpoints", "minilm-sst2"), folder, dirs_exist_ok=True)


def drawn(model: Any) -> Any:
    """The model with random weights that are the same everywhere, and so far from zero that every head matters."""
    import torch

    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.eval().named_parameters():
            if name != "logit_scale":
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model


DATA = {"cal": 24, "val": 20, "train": 24, "test": 30, "ood": 20, "near": 20, "far": 20, "many": 100, "many-ood": 100}
UNLABELLED = ("ood", "near", "far", "many-ood")


def write_images(folder: Path) -> None:
    import numpy
    from PIL import Image

    draw = numpy.random.default_rng(0)
    for name, count in DATA.items():
        labels: Any = {} if name in UNLABELLED else {"y": numpy.arange(count) % CLASSES}
        numpy.savez(folder / f"{name}.npz", x=draw.integers(0, 256, (count, 16, 16, 3), dtype=numpy.uint8), **labels)
    for number in range(6):
        path = folder / "folder" / ("tin", "oak", "salt")[number % 3] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (16, 16, 3), dtype=numpy.uint8)).save(path)
    paths = sorted(path.relative_to(folder / "folder") for path in folder.glob("folder/*/*.png"))
    (folder / "list.txt").write_text("".join(f"{path} {path.parent}\n" for path in paths))
    (folder / "names.json").write_text(json.dumps({"tin": "moss", "oak": "oak", "salt": "tin"}))
    captions = [{"image": f"folder/{path}", "caption": f"a {path.parent} thing, {path.stem}"} for path in paths]
    (folder / "captions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in captions))
    (folder / "labels.txt").write_text("tin\noak\nsalt\na red kite\nmoss\n")
    (folder / "other.txt").write_text("iron\nelm\nsugar\ncrow\nfern\n")


def write_texts(folder: Path) -> None:
    draw = random.Random(0)

    def text() -> str:
        return " ".join(draw.choices([*WORDS[:6], "unkind", "films", "!", ","], k=draw.randint(2, 9)))

    for name, count in DATA.items():
        rows = [
            {"text": f"{text()} {name}{n}"} | ({} if name in UNLABELLED else {"label": n % CLASSES})
            for n in range(count)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = [f"{text()}\t{text()} pair{n}\t{n % CLASSES}\n" for n in range(12)]
    (folder / "pairs.tsv").write_text("sentence1\tsentence2\tlabel\n" + "".join(lines))


def write_real(folder: Path) -> None:
    for name in ("sst2_train", "sst2_test", "trec"):
        (folder / f"{name}.jsonl.gz").symlink_to(Path(str(REAL_DATA), "text", f"{name}.jsonl.gz").resolve())


TEXT = {"vocab_size": 40, "max_position_embeddings": 20}
SIZES = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 32}
DISTIL = {"dim": 24, "n_layers": 3, "n_heads": 3, "hidden_dim": 32}
PIXELS = {"image_size": 16, "patch_size": 8}
DINO = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3, "mlp_ratio": 2}

# Name -> what makes the model, what writes the data, the ending of the data, the commands.
CASES: dict[str, tuple[Callable[[Path], None], Callable[[Path], None], str, str]] = {
    "timm": (make_timm, write_images, "npz", COMMON + MORE + IMAGES),
    "bert": (make_hf("Bert", "Sequence", **TEXT, **SIZES), write_texts, "jsonl", COMMON + PAIRS),
    "distilbert": (make_hf("DistilBert", "Sequence", **TEXT, **DISTIL), write_texts, "jsonl", COMMON),
    "hf-vit": (make_hf("ViT", "Image", **PIXELS, **SIZES), write_images, "npz", COMMON),
    "dinov2": (make_hf("Dinov2", "Image", **PIXELS, **DINO), write_images, "npz", COMMON),
    "clip": (make_clip, write_images, "npz", COMMON + TOWERS),
    "minilm": (make_real, write_real, "", REAL),
}


def prepare(name: str, folder: Path) -> None:
    """The folder of a case: model, data, and what its mistakes need."""
    make_model, write_data, _, _ = CASES[name]
    (folder / "model").mkdir(parents=True)
    (folder / "tuned").mkdir()
    make_model(folder / "model")
    write_data(folder)
    settings = "model: model\ndevice: cpu\nbatch_size: 8\n"
    (folder / "hydra.yaml").write_text(settings + ("labels: labels.txt\n" if name == "clip" else ""))
    sites = {"blocks.0.attn": {"heads": 4, "kept": [0, 9]}, "nowhere": {"heads": 3, "kept": []}}
    (folder / "wrong.mask.json").write_text(json.dumps({"schema": "hydractl.mask/1", "sites": sites}))
    (folder / "damaged.st").write_bytes(b"\x08\0\0\0\0\0\0\0{nonsen")
    (folder / "weights.bin").write_bytes(b"\x80\x02}q")


# --- running ----------------------------------------------------------------------------------------------------------


def run(arguments: list[str]) -> Record:
    """One command in this process, in the folder it is in: exit code, answer, warnings and errors.

    A process of its own for each would take most of the time to import torch.
    """
    import torch

    from hydractl.cli.app import main

    torch.manual_seed(0)
    *arguments, piped = arguments if arguments[-2:-1] == ["<"] else [*arguments, os.devnull]
    out, err, stdin = io.StringIO(), io.StringIO(), sys.stdin
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), open(piped) as sys.stdin:
        code = main([argument for argument in arguments if argument != "<"])
    sys.stdin = stdin
    if code == 130:
        sys.exit("interrupted: nothing is recorded")
    answer, said = (stream.getvalue().replace(f"{os.getcwd()}/", "") for stream in (out, err))
    marked = [line for line in said.splitlines() if line.startswith(("warning:", "error:", "hint:", "  - "))]
    measured = arguments[0] == "bench" and "--dry-run" not in arguments
    return {"exit": code, "said": marked, "answer": text_record(answer, measured)}


def run_case(name: str, folder: Path) -> Record:
    """Every command of a case, then every file that it left."""
    _, _, ending, commands = CASES[name]
    prepare(name, folder)
    before = set(files_of(folder))
    os.chdir(folder)
    record = {}
    for line in lines_of(commands, ending):
        record[f"{name} $ {line}"] = run(shlex.split(line))
        if line.startswith("bench") and Path("bench.json").exists():
            measured = json.loads(Path("bench.json").read_text())
            Path("fixed.json").write_text(json.dumps(without_clocks(measured, counters=True, by=0.5)))
    made = [path for path in files_of(folder) if path not in before]
    record |= {f"{name}/{path.relative_to(folder)}": file_record(path) for path in made}
    described = [path.name for path in made if path.parent == folder and path.suffix in (".st", ".json")]
    for info in (["--info", file, *form] for file in described for form in ([], ["--json"])):
        record[f"{name} $ {shlex.join(info)}"] = run(info)
    return with_names(record, made, folder)


def run_messages(folder: Path) -> Record:
    """Exit codes and messages of typical mistakes, in the folder where another case has run."""
    os.chdir(folder)
    before = set(files_of(folder))
    record = {f"$ {line}": run(shlex.split(line)) for line in lines_of(MESSAGES, "npz")}
    return record | {"$ written": [path.name for path in files_of(folder) if path not in before]}


def run_help(tree: Path) -> Record:
    """The help of every verb, each in a process of its own."""
    record = {}
    for verb in HELP:
        command = [sys.executable, "-m", "hydractl", *filter(None, [verb]), "--help"]
        record[f"hydractl {verb} --help"] = subprocess.check_output(command, cwd=tree, text=True).splitlines()
    return record


def lines_of(commands: str, ending: str) -> list[str]:
    lines = commands.replace("\\\n", "").replace(".X", f".{ending}").splitlines()
    return [" ".join(line.split()) for line in lines if line]


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


# --- what is recorded -------------------------------------------------------------------------------------------------


def digest(content: bytes) -> str:
    """A digest of the record's own, which is not among those that hydractl writes."""
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def with_names(record: Record, made: list[Path], folder: Path) -> Record:
    """The record with names of files in the place of their SHA-256: what a file holds is compared once.

    The folder, which is another one each time, is a dot.
    """
    text = json.dumps(record).replace(str(folder), ".")
    for path in made:
        sha256, name = hashlib.sha256(path.read_bytes()).hexdigest(), f"<{path.relative_to(folder)}>"
        text = text.replace(sha256, name).replace(sha256[:12], name)
    return dict(json.loads(text))


def file_record(path: Path) -> Record:
    """What a file holds, where its form is known, else its digest; that of an archive, and of its parts."""
    content, measured = path.read_bytes(), path.name.endswith(MEASURED)
    if path.suffix in (".st", ".safetensors"):
        return tensors_record(content)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            members = {name: digest(archive.read(name)) for name in sorted(archive.namelist())}
        return {"digest": digest(content), "members": members}
    if path.name.endswith((".journal", ".log.jsonl")):
        return text_record(f"[{','.join(content.decode().splitlines())}]", measured)
    if path.suffix in (".json", ".jsonl", ".csv", ".md", ".html", ".sh"):
        return text_record(content.decode(), measured)
    return {"digest": digest(content)}


def text_record(text: str, measured: bool = False) -> Record:
    """An answer or a text file: the value of its JSON, or its lines."""
    try:
        value = json.loads(text)
    except ValueError:
        return {"lines": text.split("\n")}
    return {"json": without_clocks(value, counters=measured)}


def tensors_record(content: bytes) -> Record:
    """The parts of a safetensors file: its metadata, and a digest for each tensor."""
    (size,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + size]), content[8 + size :]
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        tensors[name] = f"{entry['dtype']} {entry['shape']} {digest(data[start:end])}"
    described = {key: json.loads(text) if text.startswith("{") else text for key, text in metadata.items()}
    return {"metadata": described, "tensors": tensors}


def without_clocks(value: Any, *, counters: bool, key: str = "", by: Any = "number") -> Any:
    """The same JSON value with something in the place of what a clock moves; ``counters``: of all numbers but a few."""
    if isinstance(value, dict):
        return {name: without_clocks(item, counters=counters, key=name, by=by) for name, item in value.items()}
    if isinstance(value, list):
        return [without_clocks(item, counters=counters, key=key, by=by) for item in value]
    moved = counters and type(value) in (int, float) and key not in COUNTS
    if not moved and key not in CLOCKS:
        return value
    return 1 if type(value) is int and isinstance(by, float) else by  # a count stays one


# --- comparing --------------------------------------------------------------------------------------------------------


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what holds no other value, after its path; a list of texts is one value."""
    if isinstance(value, dict | list) and value and not is_text(value):
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(item, f"{path}.{name}" if path else str(name))
        return
    yield path, value


def differences(old: Any, new: Any, rtol: float = 0.0) -> Iterator[str]:
    """A line for each value that is not the same, with its path; of two lists of texts, what diff says."""
    before, after = dict(leaves(old)), dict(leaves(new))
    for path in dict.fromkeys([*before, *after]):
        if path not in before or path not in after:
            held = after if path in after else before
            yield f"{path}: {'new' if held is after else 'missing'}: {json.dumps(held[path])}"
        elif is_text(before[path]) and is_text(after[path]):
            lines = difflib.unified_diff(before[path], after[path], lineterm="", n=0)
            yield from (f"{path} {line}" for line in list(lines)[2:])
        elif not same(before[path], after[path], rtol):
            yield f"{path}: {json.dumps(before[path])} -> {json.dumps(after[path])}"


def same(old: Any, new: Any, rtol: float) -> bool:
    """Whether two values are equal, or about equal where one of them is no whole number."""
    kinds = {type(old), type(new)}
    if float in kinds and kinds <= {int, float}:
        return math.isclose(old, new, rel_tol=rtol)
    return len(kinds) == 1 and bool(old == new)


def is_text(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(line, str) for line in value)


def compare(old: Record, new: Record, rtol: float = 0.0, most: int = 20) -> int:
    """Prints what is not the same; the number of artefacts that are not."""
    count = 0
    for name in dict.fromkeys([*old, *new]):
        if name in old and name in new:
            lines = list(differences({name: old[name]}, {name: new[name]}, rtol))
        else:
            lines = [f"{name}: {'new' if name in new else 'missing'}"]
        count += bool(lines)
        for line in lines[:most]:
            print(line[:MOST_OF_A_LINE])
        if len(lines) > most:
            print(f"{name}: and {len(lines) - most} more")
    print(f"{count} of {len(old)} differ", file=sys.stderr)
    return count


# --- the command line -------------------------------------------------------------------------------------------------


def set_up(tree: Path) -> None:
    """Make this process, and those it starts, run the tree's hydractl, on one thread and without a network."""
    for name in [name for name in os.environ if name.startswith("HYDRACTL_")]:
        del os.environ[name]
    offline = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}
    os.environ |= offline | {"OMP_NUM_THREADS": "1", "COLUMNS": "100", "PYTHONPATH": str(tree)}
    sys.path[0] = str(tree)  # in the place of this script's folder
    import hydractl

    assert Path(hydractl.__file__).is_relative_to(tree), f"not of {tree}: {hydractl.__file__}"
    from hydractl.families.torchvision_operators import declare_operators

    declare_operators()  # before timm and open_clip, which import torchvision


def record_all(tree: Path, only: str | None) -> Record:
    record = run_help(tree)
    with tempfile.TemporaryDirectory() as folder:
        for name in [only] if only else CASES:
            if name == "minilm" and REAL_DATA is None:
                print("HYDRACTL_DATA is not set: minilm is not recorded", file=sys.stderr)
                continue
            start = time.perf_counter()
            record |= run_case(name, Path(folder).resolve() / name)
            if name == "timm":
                record |= run_messages(Path(folder).resolve() / name)
            print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr)
        os.chdir(tree)
    return record


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="OUT.json, or OLD.json NEW.json")
    parser.add_argument("--compare", action="store_true", help="say what differs between two records")
    parser.add_argument("--tree", type=Path, default=Path(__file__).parents[1], help="the checkout whose hydractl runs")
    parser.add_argument("--only", choices=CASES, help="one of the cases")
    parser.add_argument("--rtol", type=float, default=0.0, help="by how much of the larger one two numbers may differ")
    arguments = parser.parse_args()
    if arguments.compare:
        old, new = (json.loads(path.read_text()) for path in arguments.files)
        if arguments.only:
            of_case = (f"{arguments.only}/", f"{arguments.only} $")
            old, new = (
                {name: held for name, held in record.items() if name.startswith(of_case)} for record in (old, new)
            )
        return int(compare(old, new, arguments.rtol) > 0)
    (out,), tree = arguments.files, arguments.tree.resolve()
    out = out.resolve()
    set_up(tree)
    out.write_text(json.dumps(record_all(tree, arguments.only), separators=(",", ":")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
