"""A sample is known by what a model would see of it, however it is stored, and nothing is read for that alone."""

from __future__ import annotations

import collections
import io
import json
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hydractl.data import batches, open_data
from hydractl.data.base import UnreadableSample, fingerprint_of
from hydractl.data.files import FileImages
from hydractl.data.opening import keeping_fingerprints
from hydractl.data.plausibility import repetition_warnings
from hydractl.files.checkpoint import FileTensors
from hydractl.files.fingerprints import entry, incomparable, marked, other_decoder
from tests.image_data import encoded, stacked
from tests.running import answer, run

MODEL = "timm:vit_tiny_patch16_224?pretrained=0&img_size=16&patch_size=8&embed_dim=24&depth=2&num_heads=3&num_classes=2"
DRAW = np.random.default_rng(0)
GREY = DRAW.integers(0, 256, (24, 16, 16), dtype=np.uint8)
COLOUR = DRAW.integers(0, 256, (24, 16, 16, 3), dtype=np.uint8)


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def folder(name: str, images: Any, ending: str = "png", kind: str = "PNG", **settings: Any) -> str:
    """A folder of two class folders with these images."""
    for number, image in enumerate(images):
        path = Path(name, "ab"[number % 2], f"{number:02}.{ending}")
        path.parent.mkdir(parents=True, exist_ok=True)
        picture = image if isinstance(image, Image.Image) else Image.fromarray(image)
        picture.save(path, kind, **settings)
    return name


def arrays(name: str, images: np.ndarray) -> str:
    """The same images as an array, in the order of the folder."""
    order = [*range(0, len(images), 2), *range(1, len(images), 2)]
    np.savez(name, x=images[order], y=np.array(order) % 2, classes=np.array(["a", "b"]))
    return name


# --- which forms are the same sample ----------------------------------------------------------------------------------


@pytest.mark.fault(96)
@pytest.mark.parametrize(
    ("ending", "kind", "settings"),
    [("bmp", "BMP", {}), ("tif", "TIFF", {}), ("webp", "WEBP", {"lossless": True}), ("ppm", "PPM", {})],
)
@pytest.mark.parametrize("images", [GREY, COLOUR], ids=["grey", "colour"])
def test_files_without_loss_hold_the_same_samples(images: Any, ending: str, kind: str, settings: Any) -> None:
    png = open_data(folder("png", images))
    same = open_data(folder("other", images, ending, kind, **settings))
    assert same.sample_fingerprints() == png.sample_fingerprints()
    assert open_data(arrays("a.npz", images)).sample_fingerprints() == png.sample_fingerprints()


@pytest.mark.fault(96)
def test_a_grey_image_in_colour_is_the_same_and_a_jpeg_is_another() -> None:
    grey = Image.fromarray(GREY[0])
    for mode in ("RGB", "RGBA", "LA", "P"):
        assert fingerprint_of(grey.convert(mode)) == fingerprint_of(grey), mode
    original = Image.fromarray(COLOUR[0])
    jpeg = Image.open(io.BytesIO(encoded(original, "JPEG")))
    assert fingerprint_of(jpeg) != fingerprint_of(original)
    assert fingerprint_of(original.resize((8, 8))) != fingerprint_of(original)
    one_row, one_column = (Image.new("L", size, 3) for size in ((4, 1), (1, 4)))
    assert fingerprint_of(one_row) != fingerprint_of(one_column)


@pytest.mark.fault(96)
def test_texts_are_the_same_but_for_white_space_and_their_unicode_form() -> None:
    text = "Une  idée\tfine .\n"
    for same in (" Une idée fine . ", "Une\u00a0idée\u2003fine .", unicodedata.normalize("NFD", text)):
        assert fingerprint_of(same) == fingerprint_of(text), same
    for other in ("une idée fine .", "Une idée fine.", "Une idee fine .", "Uneidée fine ."):
        assert fingerprint_of(other) != fingerprint_of(text), other
    assert fingerprint_of(("a ", "b")) == fingerprint_of(("a", " b")) != fingerprint_of("a b")
    assert fingerprint_of("\ud800") != fingerprint_of("")


# --- the guard --------------------------------------------------------------------------------------------------------


@pytest.fixture
def trained() -> str:
    """A model that has seen the pictures of ``train``, grey ones of 16 pixels."""
    folder("train", GREY)
    run(
        "finetune", MODEL, "--train", "train", "--labels", "./train", "--epochs", "1", "--batch-size", "8", "-o", "m.st"
    )
    return "m.st"


@pytest.mark.fault(96)
@pytest.mark.parametrize(
    "test", ["train", "bmp", "in colour", "arrays", "one of them", "the same by --predictions", "the same in a dry run"]
)
def test_training_images_are_no_test_images_in_any_form(
    test: str, trained: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, more = "train", []
    if test == "bmp":
        spec = folder("test", GREY, "bmp", "BMP")
    elif test == "in colour":
        spec = folder("test", np.repeat(GREY[..., None], 3, axis=3))
    elif test == "arrays":
        spec = arrays("test.npz", GREY)
    elif test == "one of them":
        spec = folder("test", [*COLOUR[:23], GREY[3]])
    elif test.endswith("--predictions"):
        more = ["--predictions", "p.st"]
    elif test.endswith("dry run"):
        more = ["--dry-run"]
    before = {path.name for path in Path().iterdir()}
    capsys.readouterr()
    run("eval", trained, "--test", spec, "-o", "e.json", *more, code=3)
    captured = capsys.readouterr()
    count = 1 if test == "one of them" else 24
    assert f"test data that has been seen: m: {count} of 24 samples of --test" in " ".join(captured.err.split())
    assert captured.out == "" and {path.name for path in Path().iterdir()} == before


@pytest.mark.fault(96)
def test_other_pixels_pass(trained: str) -> None:
    run("eval", trained, "--test", folder("jpeg", GREY, "jpg", "JPEG", quality=95), "-q")
    run("eval", trained, "--test", folder("smaller", [image[:15] for image in GREY]), "-q")


# --- older files ------------------------------------------------------------------------------------------------------


def without_decoder(path: str) -> None:
    """Make of a file what an earlier version wrote of the samples that were seen."""
    import safetensors.torch

    tensors = safetensors.torch.load_file(path)
    metadata = {}
    with safetensors.safe_open(path, "pt") as file:
        metadata = dict(file.metadata())
    (key,) = (key for key, value in metadata.items() if '"decoder"' in value)
    document = json.loads(metadata[key])
    for use in document["seen"]:
        del use["decoder"]
    metadata[key] = json.dumps(document)
    safetensors.torch.save_file(tensors, path, metadata)


@pytest.mark.fault(96)
def test_a_file_with_older_fingerprints(trained: str, capsys: pytest.CaptureFixture[str]) -> None:
    without_decoder(trained)
    test = folder("test", COLOUR)
    assert FileTensors(Path(trained))
    run("eval", trained, "--test", test, code=3)
    assert "m: what finetune (train) saw is known by fingerprints of an older form" in capsys.readouterr().err
    document = answer("eval", trained, "--test", test, "--allow-seen")
    assert any("which cannot be compared" in warning for warning in document["warnings"])
    # All else works.
    run("predict", trained, test, "-o", "p.jsonl")
    run("calibrate", trained, "--val", test, "--temperature", "fit", "-o", "c.st")
    assert "whether --val is apart from it is not known" in capsys.readouterr().err
    run("prune", trained, "--method", "taylor", "--keep", "2", "--data", test, "--samples", "4", "-o", "a.st")
    run("fuse", trained, "a.st", "-o", "h.st")
    run("--info", "h.st")


@pytest.mark.fault(96)
def test_another_decoder_of_jpeg_is_said(trained: str, monkeypatch: pytest.MonkeyPatch) -> None:
    test = folder("jpeg", COLOUR, "jpg", "JPEG")
    plain = answer("eval", trained, "--test", test)
    assert not any("decoded by" in warning for warning in plain.get("warnings", ()))
    monkeypatch.setattr("hydractl.data.base.decoder_version", lambda: "Pillow 1")
    warnings = answer("eval", trained, "--test", test)["warnings"]
    assert sum("m: what it has seen was decoded by Pillow" in warning for warning in warnings) == 1
    # Of arrays and texts nothing is decoded.
    seen = [entry("finetune", "train", open_data(test))]
    data = open_data(arrays("a.npz", COLOUR))
    assert other_decoder(seen, data) is None and incomparable(seen) is None
    assert not marked([{**seen[0], "hashes": seen[0]["hashes"]}], data).any()


# --- what is read -----------------------------------------------------------------------------------------------------


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> collections.Counter[str]:
    """How often each image file is read in this process."""
    counts: collections.Counter[str] = collections.Counter()
    before = FileImages.read

    def counted(self: FileImages, i: int) -> bytes:
        counts[self.paths[i]] += 1
        return before(self, i)

    monkeypatch.setattr(FileImages, "read", counted)
    return counts


@pytest.mark.fault(96)
@pytest.mark.parametrize("verb", ["prune", "score"])
def test_of_a_large_folder_the_drawn_samples_alone_are_read(verb: str, reads: collections.Counter[str]) -> None:
    data = folder("many", list(COLOUR) * 20)
    keep = ["--keep", "2"] if verb == "prune" else []
    run(verb, MODEL, "--labels", "./many", "--method", "taylor", *keep, "--data", data, "--samples", "16", "-o", "o.st")
    passes = 2 if verb == "prune" else 1  # one for each site
    assert len(reads) == 16 and set(reads.values()) == {passes}


@pytest.mark.fault(96)
def test_eval_reads_every_file_once(trained: str, reads: collections.Counter[str]) -> None:
    test, ood = folder("test", COLOUR), folder("ood", COLOUR[..., ::-1] // 2)
    # Some are looked at for odd colours before the model runs.
    run("eval", trained, "--test", f"{test}", "--ood", f"far={ood}", "--on-bad", "skip", "-q")
    assert len(reads) == 48 and max(reads.values()) == 2


@pytest.mark.fault(96)
@pytest.mark.parametrize("workers", [0, 2])
def test_the_loader_takes_fingerprints_down(workers: int, reads: collections.Counter[str]) -> None:
    spec = folder("set", COLOUR)
    expected = open_data(spec).sample_fingerprints()
    reads.clear()
    data = open_data(spec)
    part = open_data(f"{spec}?from=3")
    for one in (data, part):
        list(batches(one, stacked, 5, workers=workers))
    read = sum(reads.values())
    assert data.sample_fingerprints() == expected and part.sample_fingerprints() == expected[3:]
    assert sum(reads.values()) == read


@pytest.mark.fault(96)
def test_an_unreadable_sample_is_read_once_more_for_nothing(reads: collections.Counter[str]) -> None:
    spec = folder("set", COLOUR[:4])
    Path(spec, "a/00.png").write_bytes(b"")
    data = open_data(spec, on_bad="skip")
    prints = data.sample_fingerprints()
    assert len(set(prints)) == 4 and set(data.skipped or {}) == {0}
    reads.clear()
    assert data.sample_fingerprints() == prints and not reads


@pytest.mark.fault(96)
@pytest.mark.parametrize("setting", ["", "?take=5", "?corruption=contrast&severity=2", "?ood=noise"])
def test_sets_of_a_command_of_many_steps_are_decoded_once(setting: str, reads: collections.Counter[str]) -> None:
    spec = folder("set", COLOUR) + setting
    expected = open_data(spec).sample_fingerprints()
    of_three = open_data(spec, limit=3).sample_fingerprints()
    reads.clear()
    with keeping_fingerprints():
        assert open_data(spec).sample_fingerprints() == expected
        once = sum(reads.values())
        assert open_data(spec, ignore_labels=True).sample_fingerprints() == expected
        assert sum(reads.values()) == once
        # Other samples of the same name are others.
        assert open_data(spec, limit=3).sample_fingerprints() == of_three
    open_data(spec).sample_fingerprints()
    assert sum(reads.values()) > once


@pytest.mark.fault(96)
@pytest.mark.parametrize("on_bad", ["error", "skip"])
def test_many_images_are_decoded_by_several_processes(on_bad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = folder("set", COLOUR)
    Path(spec, "a/04.png").write_bytes(b"no image")
    few = open_data(spec, on_bad=on_bad)
    expected = few.sample_fingerprints() if on_bad == "skip" else None
    monkeypatch.setattr("hydractl.data.batching._WORTH_PROCESSES", 5)
    monkeypatch.setattr("hydractl.data.batching.os.sched_getaffinity", lambda _: range(4))
    here: list[int] = []
    before = FileImages.read
    monkeypatch.setattr(FileImages, "read", lambda self, i: here.append(i) or before(self, i))
    many = open_data(spec, on_bad=on_bad)
    if expected is None:
        with pytest.raises(UnreadableSample, match=r"a/04\.png"):
            repetition_warnings(many)
    else:
        assert repetition_warnings(many) == [] and not here
        assert many.sample_fingerprints() == expected and set(many.skipped or {}) == {2}
    assert not here
