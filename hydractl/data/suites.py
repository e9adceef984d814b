"""``--ood-suite``: from the name of a benchmark and a folder to the named OOD sets that are to be opened.

``openood:NAME/PART?root=FOLDER`` opens the in-distribution data, alone or with the sets of shifted covariates.

Nothing is downloaded: every set that is missing is named at once, with where it was looked for and where it comes from.

OpenOOD's layout and lists: https://github.com/Jingkang50/OpenOOD (v1.5, arXiv 2306.09301), ``configs/datasets`` and
``scripts/download/download.py``. Which of its sets are for validation follows the Hydra Ensembles paper: the set that
circuits are chosen on (OpenImage-O, TinyImageNet, AG News) is not tested, unless it is asked for (``:official``):
OpenOOD itself also counts a test part of the first as far and of the second as near.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hydractl.data.base import TEXT_SUFFIXES, Dataset, Spec, parse_spec
from hydractl.data.files import read_image_list, read_image_lists, split_line
from hydractl.data.labels import RawLabels
from hydractl.errors import InputError, UsageError
from hydractl.expressions.data_sets import OodSet, SuiteChoice, setting_value

# --- what is in each suite --------------------------------------------------------------------------------------------

NEAR, FAR = "near", "far"


@dataclass(frozen=True)
class Member:
    """One set of a suite.

    Attributes:
        name: its name in the answer.
        group: ``near``, ``far``, or None for one that is for validation only.
        files: of images, the paths of OpenOOD's list below the root; the first that is there is taken (names changed
            between versions). Of texts, what the name of the file, in small letters and with ``_`` for ``-``, ``.`` and
            spaces, is or starts with.
        origin: where it comes from, for the message when it is missing.
        folder: the folder below the root that the paths in the list start from; None for texts.
        stands_in: whether it is taken only in place of a missing set of its group.
        official: whether it is taken only when asked for: the paper leaves it out, OpenOOD does not.
    """

    name: str
    group: str | None
    files: tuple[str, ...]
    origin: str
    folder: str | None = None
    stands_in: bool = False
    official: bool = False


@dataclass(frozen=True)
class Suite:
    """A suite.

    Attributes:
        samples: ``images`` or ``texts``.
        members: its sets, those for validation only among them.
        id_lists: OpenOOD's lists of the in-distribution images, and what each is: not the full test set.
        parts: the sets that each PART of ``openood:NAME/PART`` is made of.
        note: how the suite differs from others of its name, where its official sets are left out.
    """

    samples: str
    members: tuple[Member, ...]
    id_lists: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, Sequence[Member]] = field(default_factory=dict)
    note: str = ""


_OPENOOD = "OpenOOD v1.5, scripts/download/download.py of https://github.com/Jingkang50/OpenOOD"
_CLASSIC, _LARGE = "images_classic", "images_largescale"


def _openood(benchmark: str, name: str, group: str | None, folder: str, *lists: str, official: bool = False) -> Member:
    data_set = "texture" if name == "textures" else name  # as the download names it
    files = tuple(f"benchmark_imglist/{benchmark}/{file}.txt" for file in lists)
    return Member(name, group, files, f"{data_set} of {_OPENOOD}", folder, official=official)


def _id_lists(benchmark: str, test: int, val: int, images: str) -> dict[str, str]:
    """OpenOOD's two lists of some in-distribution images, and how many each takes."""
    of = f"of the {test + val:,} {images}"
    return {
        f"benchmark_imglist/{benchmark}/test_{benchmark}.txt": f"OpenOOD's ID test list: {test:,} {of}",
        f"benchmark_imglist/{benchmark}/val_{benchmark}.txt": f"OpenOOD's ID validation list: {val:,} {of}",
    }


FULL_SPECTRUM = "full-spectrum"


def _parts(own: str, folder: str, val_ood: Member, **shifted: Sequence[str]) -> dict[str, Sequence[Member]]:
    """Return the parts that ``openood:`` opens: ID data, covariate-shifted sets, and test data with all of these.

    Args:
        own: the benchmark.
        folder: of its images.
        val_ood: its OOD validation set.
        shifted: lists by set, the first that is there is taken.
    """
    parts = {part: [_openood(own, own, None, folder, f"{part}_{own}")] for part in ("train", "val", "test")}
    sets = {name: _openood(own, name, None, folder, *lists) for name, lists in shifted.items()}
    full = {FULL_SPECTRUM: [*parts["test"], *sets.values()]} if sets else {}
    return {**parts, "val-ood": [val_ood], **full, **{name: [member] for name, member in sets.items()}}


def _imagenet(own: str, test: int, val: int, images: str, shifted: Mapping[str, Sequence[str]]) -> Suite:
    val_ood = _openood(own, "openimage_o", None, _LARGE, "val_openimage_o")
    return Suite(
        samples="images",
        members=(
            val_ood,
            _openood(own, "ssb_hard", NEAR, _LARGE, "test_ssb_hard"),
            _openood(own, "ninco", NEAR, _LARGE, "test_ninco"),
            _openood(own, "inaturalist", FAR, _LARGE, "test_inaturalist"),
            _openood(own, "textures", FAR, _CLASSIC, "test_textures", "test_texture"),
            _openood(own, "openimage_o", FAR, _LARGE, "test_openimage_o", official=True),
        ),
        id_lists=_id_lists(own, test, val, images),
        parts=_parts(own, _LARGE, val_ood, **shifted),
        note="OpenOOD also counts the test part of OpenImage-O as far; here the set is for validation only, unless "
        f"openood-{own}:official is asked for",
    )


def _cifar(own: str, other: str, classes: int, **shifted: Sequence[str]) -> Suite:
    val_ood = _openood(own, "tin", None, _CLASSIC, "val_tin")
    return Suite(
        samples="images",
        members=(
            val_ood,
            _openood(own, other, NEAR, _CLASSIC, f"test_{other}"),
            _openood(own, "tin", NEAR, _CLASSIC, "test_tin", official=True),
            _openood(own, "mnist", FAR, _CLASSIC, "test_mnist"),
            _openood(own, "svhn", FAR, _CLASSIC, "test_svhn"),
            _openood(own, "texture", FAR, _CLASSIC, "test_texture", "test_textures"),
            _openood(own, "places365", FAR, _CLASSIC, "test_places365"),
        ),
        id_lists=_id_lists(own, 9_000, 1_000, f"test images of CIFAR-{classes}"),
        parts=_parts(own, _CLASSIC, val_ood, **shifted),
        note="OpenOOD also counts a part of TinyImageNet (tin) as near; here it is for validation only, unless "
        f"openood-{own}:official is asked for",
    )


_CUSTOMER_REVIEWS = Member(
    "customer_reviews", NEAR, ("customer_reviews", "cr"), "Customer Reviews (Hu & Liu 2004)", stands_in=True
)
_NEWSGROUPS = ("20ng", "20_newsgroups", "20newsgroups", "newsgroups")

SUITES: dict[str, Suite] = {
    "openood-imagenet": _imagenet(
        *("imagenet", 45_000, 5_000, "validation images of ImageNet-1k"),
        {f"imagenet_{one}": (f"test_imagenet_{one}", f"test_imagenet{one}") for one in ("v2", "c", "r")},
    ),
    "openood-imagenet200": _imagenet(
        *("imagenet200", 9_000, 1_000, "validation images of 200 classes of ImageNet-1k"),
        {f"imagenet_{one}": (f"test_imagenet200_{one}", f"test_imagenet_{one}") for one in ("v2", "c", "r")},
    ),
    "openood-cifar100": _cifar("cifar100", "cifar10", 100),
    "openood-cifar10": _cifar("cifar10", "cifar100", 10, cifar10c=("test_cifar10c",)),
    "sst2-paper": Suite(
        samples="texts",
        members=(
            Member("yelp", NEAR, ("yelp", "yelp_polarity"), "Yelp review polarity (Zhang et al. 2015)"),
            Member("amazon", NEAR, ("amazon", "amazon_polarity"), "Amazon review polarity (Zhang et al. 2015)"),
            _CUSTOMER_REVIEWS,
            Member("20ng", FAR, _NEWSGROUPS, "20 Newsgroups (http://qwone.com/~jason/20Newsgroups)"),
            Member("trec", FAR, ("trec",), "TREC questions (Li & Roth 2002)"),
            Member("mnli", FAR, ("mnli", "multinli"), "MNLI, matched, of GLUE (https://gluebenchmark.com)"),
            Member("rte", FAR, ("rte",), "RTE of GLUE (https://gluebenchmark.com)"),
            Member("wmt16", FAR, ("wmt16",), "WMT16, the English side (https://www.statmt.org/wmt16)"),
            Member("agnews", None, ("agnews", "ag_news"), "AG News (Zhang et al. 2015)"),
        ),
    ),
}
"""The suites, by the names of :data:`hydractl.expressions.data_sets.OOD_SUITES`."""


# --- where it is ------------------------------------------------------------------------------------------------------

# The folder as downloaded, or the checkout of OpenOOD that holds it.
_BELOW = ("", "data")

_LONGEST_LINE = 65_536


@dataclass
class FoundSuite:
    """A suite whose files were looked for.

    Attributes:
        name: of the suite.
        sets: the OOD sets to test on: name, group and SPEC, in the order of the suite.
        left_out: names of sets that are not there and that were given up (``:partial``).
        notes: what the answer has to say, one sentence each.
    """

    name: str
    sets: list[OodSet]
    left_out: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """The suite as recorded in artefacts, without its data sets."""
        return {"name": self.name, "left_out": self.left_out, "notes": self.notes}


def find_suite(choice: SuiteChoice, root: str, taken: Iterable[str] = ()) -> FoundSuite:
    """Find the OOD sets of a suite below a folder.

    Args:
        choice: the suite, the sets asked for, and whether some may be missing.
        root: the folder of the data.
        taken: names of other OOD sets beside these.

    Raises:
        UsageError: for a set that the suite does not have, or has for validation only, or a name that is taken.
        InputError: for a folder that is not there, and listing every set that is missing or cannot be told from others.
    """
    suite = SUITES[choice.name]
    folder = os.path.expanduser(root)
    if not os.path.isdir(folder):
        raise InputError(f"--ood-root {root}: no such folder")
    wanted = _wanted(choice, suite)
    looked = {member: _look(folder, member) for member in wanted}
    specs = {member: spec for member, (spec, _) in looked.items() if spec is not None}
    gone = {member: why for member, (spec, why) in looked.items() if spec is None}
    notes = [suite.note] if suite.note and not any(member.official for member in wanted) else []
    if not choice.sets:
        notes += _stand_in(suite, folder, specs, gone)
    if gone and not (choice.partial and specs):
        way_out = f"--ood-suite {choice.name}:partial goes on with those that are there"
        if not specs:
            what = "benchmark_imglist and images_..." if suite.samples == "images" else "the files of texts"
            way_out = f"is --ood-root the folder that holds {what}?"
        raise InputError(
            f"--ood-suite {choice.name}: {len(gone)} of {len(wanted)} sets are not under --ood-root {root}",
            hint=f"nothing is downloaded; {way_out}",
            problems=gone.values(),
        )
    if gone:
        notes.append(f"without {', '.join(member.name for member in gone)}, which {_is(gone)} not there")
    sets = [OodSet(member.name, member.group, specs[member]) for member in suite.members if member in specs]
    twice = [dataset.name for dataset in sets if dataset.name in set(taken)]
    if twice:
        raise UsageError(
            f"--ood-suite {choice.name} and --ood both have {', '.join(twice)}", hint="give the --ood set another name"
        )
    return FoundSuite(choice.name, sets, [member.name for member in gone], notes)


def id_list_of(spec: str) -> str | None:
    """Describe in a sentence an ID data set whose SPEC names one of OpenOOD's ID lists; None for any other."""
    path = spec.partition("?")[0].replace(os.sep, "/")
    benchmark, _, part = path.removeprefix("openood:").partition("/")
    named = SUITES.get(f"openood-{benchmark}") if path.startswith("openood:") else None
    if named is not None and part in named.parts:
        path, *shifted = (f"/{member.files[0]}" for member in named.parts[part])
        if shifted:
            names = ", ".join(member.name for member in named.parts[part][1:])
            return f"OpenOOD's full spectrum: {named.id_lists[path[1:]]}, and {names}"
    for suite in SUITES.values():
        for name, sentence in suite.id_lists.items():
            if path.endswith(name):
                return sentence
    return None


def read_openood(spec: Spec, limit: int | None, seed: int = 0) -> tuple[Dataset, RawLabels]:
    """Open ``openood:NAME/PART?root=FOLDER``, one part of the data of an OpenOOD benchmark; nothing is downloaded.

    Raises:
        UsageError: no such benchmark or part, or no root.
        InputError: data that are not there.
    """
    spec.check_query(("root",))
    benchmark, _, name = spec.path.partition("/")
    parts = {own.removeprefix("openood-"): suite.parts for own, suite in SUITES.items() if suite.parts}
    if benchmark not in parts or name not in parts[benchmark]:
        known = parts.get(benchmark)
        hint = f"there are {', '.join(parts)}" if known is None else f"{benchmark} has {', '.join(known)}"
        raise UsageError(f"{spec.where}: OpenOOD has no {spec.path!r} here", hint=f"openood:NAME/PART; {hint}")
    root = os.path.expanduser(spec.query.get("root", ""))
    if not root:
        raise UsageError(f"{spec.where} needs the folder of the data", hint=f"openood:{spec.path}?root=FOLDER")
    wanted = parts[benchmark][name]
    looked = [_listed(root, member.files, member.folder or "") for member in wanted]
    lacking = [(member, why) for member, (found, why) in zip(wanted, looked, strict=True) if found is None]
    problems = [f"{why}; it comes from {member.origin}" for member, why in lacking]
    if problems:
        raise InputError(f"{spec.where}: not all of it is there", hint="nothing is downloaded", problems=problems)
    lists = [parse_spec(found, spec.option) for found, _ in looked if found is not None]
    images = replace(spec, query=lists[0].query)
    if len(lists) > 1:
        return read_image_lists(images, [one.path for one in lists], limit)
    return read_image_list(replace(images, path=lists[0].path), limit, seed)


def _is(members: Collection[Member]) -> str:
    return "is" if len(members) == 1 else "are"


def _wanted(choice: SuiteChoice, suite: Suite) -> list[Member]:
    """Return the sets asked for: all that are tested, or those named."""
    tested = [member for member in suite.members if member.group is not None]
    if choice.official and not any(member.official for member in tested):
        raise UsageError(f"--ood-suite {choice.name} has no other official sets", hint=f"--ood-suite {choice.name}")
    if not choice.sets:
        return [member for member in tested if not member.stands_in and (choice.official or not member.official)]
    known = {member.name: member for member in suite.members}
    problems = []
    for name in choice.sets:
        if name not in known:
            problems.append(f"no set {name!r}: there are {', '.join(member.name for member in tested)}")
        elif known[name].group is None:
            problems.append(f"{name} is for validation only (circuits and thresholds are chosen on it): never tested")
    if problems:
        raise UsageError(f"--ood-suite {choice.name}: not sets to test on", problems=problems)
    return [member for member in tested if member.name in choice.sets]


def _stand_in(suite: Suite, folder: str, specs: dict[Member, str], gone: dict[Member, str]) -> list[str]:
    """Put stand-ins in place of missing sets of their group; returns a sentence for each."""
    notes = []
    for member in suite.members:
        replaced = [other for other in gone if other.group == member.group]
        spec = _look(folder, member)[0] if member.stands_in and replaced else None
        if spec is not None:
            specs[member] = spec
            names = " and ".join(other.name for other in replaced)
            notes.append(f"{member.name} stands in for {names}, which {_is(replaced)} not there ({member.group})")
            for other in replaced:
                del gone[other]
    return notes


def _look(folder: str, member: Member) -> tuple[str | None, str]:
    """Return the SPEC of a set; without one, a line that says what was looked for and where it comes from."""
    spec, why = _named(folder, member.files) if member.folder is None else _listed(folder, member.files, member.folder)
    return spec, f"{member.name} ({member.group or 'validation'}): {why}; it comes from {member.origin}"


def _listed(folder: str, lists: Sequence[str], below_root: str) -> tuple[str | None, str]:
    """Return the SPEC of an image list whose first image is there; without one, what was looked for."""
    why = f"no {' or '.join(lists)}"
    for below in _BELOW:
        base = os.path.join(folder, below) if below else folder
        images = os.path.join(base, below_root)
        for name in lists:
            path = os.path.join(base, *name.split("/"))
            if not os.path.isfile(path):
                continue
            first = _first_path(path)
            if first is not None and os.path.isfile(os.path.join(images, first)):
                return f"{path}?root={setting_value(images)}", ""
            why = f"{name} is there, and its first image is not: {os.path.join(below_root, first or '(none)')}"
    return None, why


def _first_path(path: str) -> str | None:
    """The path in the first line of an image list; None for an empty one."""
    with open(path, encoding="utf-8-sig", errors="replace") as file:
        while line := file.readline(_LONGEST_LINE):
            if line.strip():
                return split_line(line.rstrip("\n"))[0]
    return None


def _named(folder: str, stems: tuple[str, ...]) -> tuple[str | None, str]:
    """Return the SPEC of the one text file of that name; without one, what was looked for."""
    found: dict[int, list[str]] = {}
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if name.lower().endswith(TEXT_SUFFIXES) and os.path.isfile(path):
            rank = _rank(name, stems)
            if rank is not None:
                found.setdefault(rank, []).append(path)
    if not found:
        endings = "|".join(sorted({suffix.removesuffix(".gz") for suffix in TEXT_SUFFIXES}))
        names = " or ".join(f"{stem}.* or {stem}_*" for stem in stems)
        return None, f"no file {names} ({endings})"
    best = found[min(found)]
    if len(best) > 1:
        return None, f"several files may be it: {', '.join(map(os.path.basename, best))}"
    return best[0], ""


def _rank(name: str, stems: tuple[str, ...]) -> int | None:
    """Rank a file name, 0 being best: the name itself, a test part, another part; None for another set's name.

    Parts for training are never taken; of MNLI's two test parts the matched one is.
    """
    suffix = max((suffix for suffix in TEXT_SUFFIXES if name.lower().endswith(suffix)), key=len)
    stem = re.sub(r"[-. ]+", "_", name.lower().removesuffix(suffix))
    words = stem.split("_")
    if "train" in words or "mismatched" in words:
        return None
    if stem in stems:
        return 0
    if not stem.startswith(tuple(f"{own}_" for own in stems)):
        return None
    return 1 if "test" in words else 2
