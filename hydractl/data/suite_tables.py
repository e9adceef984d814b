"""Contents of each suite of OOD sets: names, groups, where the files are looked for, and where they come from.

OpenOOD's layout and lists: https://github.com/Jingkang50/OpenOOD (v1.5, arXiv 2306.09301), ``configs/datasets`` and
``scripts/download/download.py``. Which of its sets are for validation follows the Hydra Ensembles paper: the set that
circuits are chosen on (OpenImage-O, TinyImageNet, AG News) is not tested, although OpenOOD itself also counts a test
part of the first as far and of the second as near.
"""

from __future__ import annotations

from dataclasses import dataclass, field

NEAR, FAR = "near", "far"


@dataclass(frozen=True)
class Listed:
    """A set given by one of OpenOOD's image lists.

    Attributes:
        lists: the list's paths below the root; the first that is there is taken (names changed between versions).
        folder: the folder below the root that the list's paths start from.
    """

    lists: tuple[str, ...]
    folder: str


@dataclass(frozen=True)
class Named:
    """A set given by a file of texts of some name.

    Attributes:
        stems: what the file's name, in small letters and with ``_`` for ``-``, ``.`` and spaces, is or starts with.
    """

    stems: tuple[str, ...]


@dataclass(frozen=True)
class Member:
    """One set of a suite.

    Attributes:
        name: its name in the answer.
        group: ``near``, ``far``, or None for one that is for validation only.
        files: where it is.
        origin: where it comes from, for the message when it is missing.
        stands_in: whether it is taken only in place of a missing set of its group.
    """

    name: str
    group: str | None
    files: Listed | Named
    origin: str
    stands_in: bool = False


@dataclass(frozen=True)
class Suite:
    """A suite.

    Attributes:
        samples: ``images`` or ``texts``.
        members: its sets, those for validation only among them.
        id_lists: OpenOOD's lists of the in-distribution images, by split.
        id_sentences: what each of those lists is, for the answer: it is not the full test set.
        note: how the suite differs from others of its name.
    """

    samples: str
    members: tuple[Member, ...]
    id_lists: dict[str, Listed] = field(default_factory=dict)
    id_sentences: dict[str, str] = field(default_factory=dict)
    note: str = ""


_OPENOOD = "OpenOOD v1.5, scripts/download/download.py of https://github.com/Jingkang50/OpenOOD"
CLASSIC, LARGE = "images_classic", "images_largescale"


def _listed(benchmark: str, folder: str, *names: str) -> Listed:
    return Listed(tuple(f"benchmark_imglist/{benchmark}/{name}.txt" for name in names), folder)


def _openood(benchmark: str, name: str, group: str | None, folder: str, *lists: str) -> Member:
    data_set = "texture" if name == "textures" else name  # as the download names it
    return Member(name, group, _listed(benchmark, folder, *lists), f"{data_set} of {_OPENOOD}")


def _cifar(own: str, other: str, classes: int) -> Suite:
    return Suite(
        samples="images",
        members=(
            _openood(own, other, NEAR, CLASSIC, f"test_{other}"),
            _openood(own, "mnist", FAR, CLASSIC, "test_mnist"),
            _openood(own, "svhn", FAR, CLASSIC, "test_svhn"),
            _openood(own, "texture", FAR, CLASSIC, "test_texture", "test_textures"),
            _openood(own, "places365", FAR, CLASSIC, "test_places365"),
            _openood(own, "tin", None, CLASSIC, "val_tin"),
        ),
        id_lists={split: _listed(own, CLASSIC, f"{split}_{own}") for split in ("test", "val")},
        id_sentences={
            "test": f"OpenOOD's ID test list: 9,000 of the 10,000 test images of CIFAR-{classes}",
            "val": f"OpenOOD's ID validation list: 1,000 of the 10,000 test images of CIFAR-{classes}",
        },
        note="OpenOOD also counts a part of TinyImageNet (tin) as near; here it is for validation only",
    )


_CUSTOMER_REVIEWS = Member(
    "customer_reviews", NEAR, Named(("customer_reviews", "cr")), "Customer Reviews (Hu & Liu 2004)", stands_in=True
)
_NEWSGROUPS = ("20ng", "20_newsgroups", "20newsgroups", "newsgroups")

SUITES: dict[str, Suite] = {
    "openood-imagenet": Suite(
        samples="images",
        members=(
            _openood("imagenet", "ssb_hard", NEAR, LARGE, "test_ssb_hard"),
            _openood("imagenet", "ninco", NEAR, LARGE, "test_ninco"),
            _openood("imagenet", "inaturalist", FAR, LARGE, "test_inaturalist"),
            _openood("imagenet", "textures", FAR, CLASSIC, "test_textures", "test_texture"),
            _openood("imagenet", "openimage_o", None, LARGE, "val_openimage_o"),
        ),
        id_lists={split: _listed("imagenet", LARGE, f"{split}_imagenet") for split in ("test", "val")},
        id_sentences={
            "test": "OpenOOD's ID test list: 45,000 of the 50,000 validation images of ImageNet-1k",
            "val": "OpenOOD's ID validation list: 5,000 of the 50,000 validation images of ImageNet-1k",
        },
        note="OpenOOD also counts the test part of OpenImage-O as far; here the set is for validation only",
    ),
    "openood-cifar100": _cifar("cifar100", "cifar10", 100),
    "openood-cifar10": _cifar("cifar10", "cifar100", 10),
    "sst2-paper": Suite(
        samples="texts",
        members=(
            Member("yelp", NEAR, Named(("yelp", "yelp_polarity")), "Yelp review polarity (Zhang et al. 2015)"),
            Member("amazon", NEAR, Named(("amazon", "amazon_polarity")), "Amazon review polarity (Zhang et al. 2015)"),
            _CUSTOMER_REVIEWS,
            Member("20ng", FAR, Named(_NEWSGROUPS), "20 Newsgroups (http://qwone.com/~jason/20Newsgroups)"),
            Member("trec", FAR, Named(("trec",)), "TREC questions (Li & Roth 2002)"),
            Member("mnli", FAR, Named(("mnli", "multinli")), "MNLI, matched, of GLUE (https://gluebenchmark.com)"),
            Member("rte", FAR, Named(("rte",)), "RTE of GLUE (https://gluebenchmark.com)"),
            Member("wmt16", FAR, Named(("wmt16",)), "WMT16, the English side (https://www.statmt.org/wmt16)"),
            Member("agnews", None, Named(("agnews", "ag_news")), "AG News (Zhang et al. 2015)"),
        ),
    ),
}
"""The suites, by the names of :data:`hydractl.settings.expressions.OOD_SUITES`."""
