"""Suites of OOD sets: what is found in OpenOOD's layout and among files of texts, and every set that is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from hydractl.data import open_data
from hydractl.data.suites import SUITES, SuiteMember, find_suite, id_list_of
from hydractl.errors import InputError, UsageError
from hydractl.expressions.data_sets import OOD_SUITES, parse_ood_suite
from tests.running import refused
from tests.spread import spread


def put(root: Path, member: SuiteMember) -> None:
    """An image list of the name that is tried last, and its images."""
    path = root / member.files[-1]
    path.parent.mkdir(parents=True, exist_ok=True)
    names = [f"{path.stem}/{i}.png" for i in range(2)]
    path.write_text("".join(f"{name} -1\n" for name in names))
    for i, name in enumerate(names):
        file = root / str(member.folder) / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (i, len(path.stem), 0)).save(file)


def build(root: Path, name: str) -> Path:
    for member in SUITES[name].members:
        put(root, member)
    return root


def test_the_tables_and_the_options_name_the_same() -> None:
    assert tuple(SUITES) == OOD_SUITES
    for name, suite in SUITES.items():
        assert [member.group for member in suite.members].count(None) == 1, name
        assert {member.group for member in suite.members} == {"near", "far", None}


EXPECTED = {
    "openood-imagenet": "ssb_hard:near ninco:near inaturalist:far textures:far",
    "openood-imagenet200": "ssb_hard:near ninco:near inaturalist:far textures:far",
    "openood-imagenet200:official": "ssb_hard:near ninco:near inaturalist:far textures:far openimage_o:far",
    "openood-cifar100": "cifar10:near mnist:far svhn:far texture:far places365:far",
    "openood-cifar10": "cifar100:near mnist:far svhn:far texture:far places365:far",
}


@pytest.mark.parametrize(("name", "below"), spread(EXPECTED, ["", "data"]))
def test_openood(name: str, below: str, tmp_path: Path) -> None:
    root = tmp_path / "50 % & more"
    build(root / below, name.split(":")[0])
    available = find_suite(parse_ood_suite(name), str(root))
    assert " ".join(f"{ood_set.name}:{ood_set.group}" for ood_set in available.sets) == EXPECTED[name]
    assert available.left_out == []
    if ":" in name:
        assert available.notes == []
    else:
        (note,) = available.notes
        assert "validation only" in note
    for ood_set in available.sets:
        data = open_data(ood_set.spec, ignore_labels=True)
        assert len(data) == 2
        assert data.labels is None
        assert data[1].size == (4, 4)


def test_every_missing_set_is_named_at_once(tmp_path: Path) -> None:
    build(tmp_path, "openood-imagenet")
    (tmp_path / "benchmark_imglist/imagenet/test_ninco.txt").unlink()
    (tmp_path / "benchmark_imglist/imagenet/test_texture.txt").unlink()
    (tmp_path / "images_largescale/test_inaturalist/0.png").unlink()
    error = refused(InputError, find_suite, parse_ood_suite("openood-imagenet"), str(tmp_path))
    assert error.message == (
        f"--ood-suite openood-imagenet: 3 of 4 sets are not under --ood-root {tmp_path}"
    )  # fmt: skip
    source = "of OpenOOD v1.5, scripts/download/download.py of https://github.com/Jingkang50/OpenOOD"
    lists = "benchmark_imglist/imagenet"
    assert error.problems == [
        f"ninco (near): no {lists}/test_ninco.txt; it comes from ninco {source}",
        f"inaturalist (far): {lists}/test_inaturalist.txt is there, and its first image is not: "
        f"images_largescale/test_inaturalist/0.png; it comes from inaturalist {source}",
        f"textures (far): no {lists}/test_textures.txt or {lists}/test_texture.txt; it comes from texture {source}",
    ]
    assert error.hint is not None and "openood-imagenet:partial" in error.hint

    available = find_suite(parse_ood_suite("openood-imagenet:partial"), str(tmp_path))
    assert [ood_set.name for ood_set in available.sets] == ["ssb_hard"]
    assert available.left_out == ["ninco", "inaturalist", "textures"]
    assert available.notes[-1] == "without ninco, inaturalist, textures, which are not there"


def test_nothing_there_is_an_error_even_in_part(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="5 of 5 sets") as error:
        find_suite(parse_ood_suite("openood-cifar10:partial"), str(tmp_path))
    assert error.value.hint is not None and "benchmark_imglist" in error.value.hint
    with pytest.raises(InputError, match="no such folder"):
        find_suite(parse_ood_suite("openood-cifar10"), str(tmp_path / "none"))
    (tmp_path / "benchmark_imglist/cifar10").mkdir(parents=True)
    (tmp_path / "benchmark_imglist/cifar10/test_svhn.txt").touch()
    with pytest.raises(InputError) as error:
        find_suite(parse_ood_suite("openood-cifar10:svhn"), str(tmp_path))
    assert "its first image is not: images_classic/(none)" in error.value.problems[0]


def test_sets_by_name(tmp_path: Path) -> None:
    build(tmp_path, "openood-cifar100")
    available = find_suite(parse_ood_suite("openood-cifar100:svhn,cifar10"), str(tmp_path))
    assert [ood_set.name for ood_set in available.sets] == ["cifar10", "svhn"]
    available = find_suite(parse_ood_suite("openood-cifar100:tin"), str(tmp_path))  # its test part, asked for
    assert available.sets[0].spec.text.split("?")[0].endswith("cifar100/test_tin.txt") and available.notes == []
    error = refused(UsageError, find_suite, parse_ood_suite("openood-cifar100:lsun"), str(tmp_path))
    assert error.problems == ["no set 'lsun': there are cifar10, tin, mnist, svhn, texture, places365"]
    with pytest.raises(UsageError, match="sst2-paper has no other official sets"):
        find_suite(parse_ood_suite("sst2-paper:official"), str(tmp_path))


def test_names_that_are_taken_and_the_document(tmp_path: Path) -> None:
    build(tmp_path, "openood-cifar10")
    with pytest.raises(UsageError, match="--ood-suite openood-cifar10 and --ood both have svhn"):
        find_suite(parse_ood_suite("openood-cifar10"), str(tmp_path), taken=["svhn", "mine"])
    available = find_suite(parse_ood_suite("openood-cifar10:mnist"), str(tmp_path), taken=["svhn"])
    assert available.document() == {"name": "openood-cifar10", "left_out": [], "notes": available.notes}


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("cifar100/test_cifar100.txt", "OpenOOD's ID test list: 9,000 of the 10,000 test images of CIFAR-100"),
        (
            "cifar10/val_cifar10.txt?root=/d",
            "OpenOOD's ID validation list: 1,000 of the 10,000 test images of CIFAR-10",
        ),
        ("imagenet/test_imagenet.txt", "OpenOOD's ID test list: 45,000 of the 50,000 validation images of ImageNet-1k"),
        ("imagenet/test_ninco.txt", None),
        (
            "openood:cifar10/full-spectrum?root=d",
            "OpenOOD's full spectrum: OpenOOD's ID test list: 9,000 of the 10,000 test images of CIFAR-10, "
            "and cifar10c",
        ),
        ("openood:imagenet200/train?root=d", None),
    ],
)
def test_id_lists(spec: str, sentence: str | None) -> None:
    assert id_list_of(spec if spec.startswith("openood:") else f"/d/benchmark_imglist/{spec}") == sentence


WRONG = {
    "openood:imagenet/testt?root={}": "no 'imagenet/testt' here",
    "openood:cifar100/full-spectrum?root={}": "no 'cifar100/full-spectrum' here",
    "openood:svhn?root={}": "no 'svhn' here",
    "openood:imagenet/test": "needs the folder of the data",
    "openood:imagenet/full-spectrum?root={}": "not all of it is there",
}


@pytest.mark.parametrize(("spec", "message"), WRONG.items())
def test_wrong_parts_of_a_benchmark(spec: str, message: str, tmp_path: Path) -> None:
    put(tmp_path, SUITES["openood-imagenet"].parts["test"][0])
    error = refused((UsageError, InputError), open_data, spec.format(tmp_path))
    assert message in error.message
    assert error.hint
    lists = [problem.partition(" or")[0] for problem in error.problems]
    if "not all" in message:
        folder = "benchmark_imglist/imagenet"
        assert lists == [f"no {folder}/test_imagenet_{shift}.txt" for shift in ("v2", "c", "r")]
    else:
        assert lists == []


TEXTS = ("20ng", "trec", "mnli_matched_1000", "rte_dev", "wmt16", "agnews_val")


def texts(root: Path, *names: str) -> None:
    for name in names:
        (root / name).write_text('{"text": "a"}\n')


def test_texts(tmp_path: Path) -> None:
    texts(
        tmp_path,
        *(f"{name}.jsonl" for name in (*TEXTS, "imdb_1000", "sst2_test", "amazon")),
        "Yelp Polarity-test.jsonl",
    )
    available = find_suite(parse_ood_suite("sst2-paper"), str(tmp_path))
    assert " ".join(f"{ood_set.name}:{ood_set.group}" for ood_set in available.sets) == (
        "yelp:near amazon:near 20ng:far trec:far mnli:far rte:far wmt16:far"
    )
    assert available.notes == [] and open_data(available.sets[0].spec)[0] == "a"


def test_which_file_of_a_name(tmp_path: Path) -> None:
    texts(tmp_path, "trec_train.jsonl", "trec_validation.jsonl", "trecish.jsonl")
    assert (
        find_suite(parse_ood_suite("sst2-paper:trec"), str(tmp_path))
        .sets[0]
        .spec.text.endswith("trec_validation.jsonl")
    )
    texts(tmp_path, "trec_test.jsonl")
    assert find_suite(parse_ood_suite("sst2-paper:trec"), str(tmp_path)).sets[0].spec.text.endswith("trec_test.jsonl")
    texts(tmp_path, "trec-test.jsonl")
    error = refused(InputError, find_suite, parse_ood_suite("sst2-paper:trec,yelp"), str(tmp_path))
    assert "several files may be it: trec-test.jsonl, trec_test.jsonl" in error.problems[1]
    assert error.problems[0].startswith("yelp (near): no file yelp.* or yelp_*")
    usage = refused(UsageError, find_suite, parse_ood_suite("sst2-paper:agnews"), str(tmp_path))
    assert "never tested" in usage.problems[0]


def test_the_real_texts(real_data: Path) -> None:
    available = find_suite(parse_ood_suite("sst2-paper:partial"), str(real_data / "text"))
    sizes = {ood_set.name: len(open_data(ood_set.spec, ignore_labels=True)) for ood_set in available.sets}
    assert sizes == {"20ng": 2000, "trec": 2500, "mnli": 1000, "rte": 277, "wmt16": 2500}
