"""Write the tables of docs/models.md: what of timm, transformers and open_clip can be opened.

Every model of timm is built as its library names it, without memory for its weights; of transformers every class for
sequences or images is looked up. What was tested of those that work is what the lists of the tests say.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from hydractl.errors import InputError
from hydractl.families import get_family
from hydractl.families.hf.architectures import ARCHITECTURES, TWO_TOWERS, class_name, meta_model
from hydractl.families.timm import check_timm_model

get_family("timm")
get_family("open_clip")

import open_clip  # noqa: E402
import timm  # noqa: E402
import transformers  # noqa: E402
from timm.models import Beit, Eva, SwinTransformer, VisionTransformer  # noqa: E402
from timm.models import model_entrypoint as entrypoint  # noqa: E402
from transformers.models.auto import modeling_auto  # noqa: E402

from hydractl.families.open_clip.models import skeleton  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests import pico, pico_clip  # noqa: E402
from tests.model import test_published_sizes as published  # noqa: E402

OPENED = (VisionTransformer, Eva, Beit, SwinTransformer)
MARK = "<!-- by docs/make_models.py -->\n"
Row = tuple[str, str, str]
"""Class, models of it, and why it is refused: empty where it works."""


def timm_names() -> dict[str, list[str]]:
    """The models of each file of timm that defines some attention or some vision transformer."""
    files: dict[str, list[str]] = {}
    for name in timm.list_models():
        files.setdefault(entrypoint(name).__module__, []).append(name)
    return {
        file: names for file, names in files.items() if any(_attends(*one) for one in vars(sys.modules[file]).items())
    }


def _attends(name: str, kind: object) -> bool:
    return isinstance(kind, type) and ("Attention" in name or "Attn" in name or issubclass(kind, OPENED))


def timm_rows(files: Mapping[str, Sequence[str]]) -> list[Row]:
    """One row for each class and reason.

    Of a file without classes that can be opened, one model stands for all.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for names in files.values():
        model = _built(min(names, key=len))
        each = {name: _built(name) for name in names} if isinstance(model, OPENED) else dict.fromkeys(names, model)
        for name, model in each.items():
            found.setdefault((type(model).__name__, _reason(model)), []).append(name)
    rows = sorted((kind, _several(names), reason) for (kind, reason), names in found.items())
    return [row for row in rows if row[2] != "it has no attention"]


def _built(name: str) -> Any:
    """The model without memory for its weights, and where it can be made so with few blocks, which are alike."""
    with torch.device("meta"):
        try:
            return timm.create_model(name, pretrained=False, depth=2)
        except (TypeError, AssertionError):
            return timm.create_model(name, pretrained=False)


def _reason(model: Any) -> str:
    try:
        check_timm_model(model)
    except InputError as error:
        return error.message.partition("not supported: ")[2] or error.message
    return ""


def _several(names: list[str]) -> str:
    return f"{len(names)}: " + ", ".join(f"`{name}`" for name in sorted(names, key=len)[:3])


def transformers_classes() -> list[str]:
    """The classes of the library that sort sequences or images into classes, and that can be opened."""
    known: set[str] = {*ARCHITECTURES, *TWO_TOWERS}
    for task in ("SEQUENCE_CLASSIFICATION", "IMAGE_CLASSIFICATION"):
        for names in getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES").values():
            known.update([names] if isinstance(names, str) else names)
    return [name for name in sorted(known) if not _refusal(name)]


def _refusal(name: str) -> str:
    try:
        class_name({"architectures": [name]})
    except InputError as error:
        reason = error.message.partition("not supported: ")[2]
        return reason.removeprefix("its attention is ") or "no attention of its own"
    try:
        if name not in TWO_TOWERS:
            meta_model({"architectures": [name], "num_labels": 2, "num_hidden_layers": 1})
    except InputError as error:
        return error.message.partition(" is not supported: ")[2]
    return ""


def tested() -> dict[str, list[str]]:
    """What the tests run of each class of timm and transformers, and of each pair of towers of open_clip."""
    found: dict[str, list[str]] = {}
    for variant in pico.TIMM:
        found.setdefault(type(pico.shared_stock(variant)).__name__, ["pico weights"])
    for name, _, _ in (*pico.HF.values(), *pico.HF_CLIP.values()):
        found.setdefault(name, ["pico weights"])
    for name in pico_clip.CLIP:
        found.setdefault(_towers(pico_clip.clip_config(name)), ["pico weights"])
    for name, (variant, _, _) in published.NAMED.items():
        kind = type(_built(name)).__name__ if variant in pico.TIMM else _towers(open_clip.get_model_config(name))
        found.setdefault(kind, []).append(f"`{name}` as shapes")
    for name in published.CLASSES:
        found[name].append("as shapes")
    for name in pico.REAL:
        found[name].append("real weights")
    return found


def table(rows: Iterable[Row], first: str) -> str:
    """The rows that work, with what was tested."""
    runs = tested()
    lines = [f"| {first} | models | tested |", "|---|---|---|"]
    lines += [f"| {kind} | {models} | {_told(runs, kind)} |" for kind, models, reason in rows if not reason]
    return "\n".join(lines) + "\n"


def _told(runs: Mapping[str, Sequence[str]], kind: str) -> str:
    return ", ".join(runs.get(kind, ["opens"]))


def transformers_text() -> str:
    """The classes that work, by what was tested of them."""
    runs = tested()
    by_tests: dict[str, list[str]] = {}
    for name in transformers_classes():
        by_tests.setdefault(_told(runs, name), []).append(f"`{name}`")
    lines = ["| tested | classes |", "|---|---|"]
    lines += [f"| {tests} | {', '.join(names)} |" for tests, names in by_tests.items()]
    return "\n".join(lines) + "\n"


def open_clip_rows() -> list[Row]:
    """One row for each pair of towers and each reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for name in open_clip.list_models():
        config = open_clip.get_model_config(name)
        reason = _open_clip_reason(config)
        found.setdefault((_towers(config), reason), []).append(name)
    return sorted((towers, _several(names), reason) for (towers, reason), names in found.items())


def _towers(config: dict[str, Any]) -> str:
    vision, text = config.get("vision_cfg", {}), config.get("text_cfg", {})
    images = f"{vision['timm_model_name'].partition('_')[0]} of timm" if "timm_model_name" in vision else "its own"
    texts = f"{text['hf_model_name']} of transformers" if text.get("hf_model_name") else "its own"
    return f"images: {images}; texts: {texts}"


def _open_clip_reason(config: dict[str, Any]) -> str:
    try:
        skeleton(config)
    except InputError as error:
        return error.message.partition("not supported: ")[2] or error.message
    return ""


if __name__ == "__main__":
    path = Path(__file__).with_name("models.md")
    text = path.read_text(encoding="utf-8").partition(MARK)[0]
    text += f"{MARK}\n## timm {timm.__version__}\n\n{table(timm_rows(timm_names()), 'class')}"
    text += f"\n## transformers {transformers.__version__}\n\n{transformers_text()}"
    text += f"\n## open_clip {open_clip.__version__}\n\n{table(open_clip_rows(), 'towers')}"
    path.write_text(text, encoding="utf-8")
