"""``--ood-suite``: the OOD sets of a benchmark by its name, found below a folder.

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

from hydractl.data.base import TEXT_SUFFIXES, Dataset, Spec, parse_spec
from hydractl.data.files import read_image_list, read_image_lists, split_line
from hydractl.data.labels import RawLabels
from hydractl.errors import InputError, UsageError
from hydractl.expressions.data_sets import OodSet, SuiteChoice, setting_value

# --- what is in each suite --------------------------------------------------------------------------------------------

NEAR, FAR = "near", "far"


@dataclass(frozen=True)
class SuiteMember:
    """One set of a suite.

    Attributes:
        name: its name in the answer.
        group: ``near``, ``far``, or None for one that is for validation only.
        files: for images, the paths of OpenOOD's list below the root; the first that is there is taken (names changed
            between versions). For texts, what the name of the file, in small letters and with ``_`` for ``-``, ``.``
            and spaces, is or starts with.
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
class OodBenchmark:
    """The sets of one benchmark.

    Attributes:
        samples: ``images`` or ``texts``.
        members: its sets, those for validation only among them.
        id_lists: OpenOOD's lists of the in-distribution images, and what each is: not the full test set.
        parts: the sets that each PART of ``openood:NAME/PART`` is made of.
        note: how the suite differs from others of its name, where its official sets are left out.
    """

    samples: str
    members: tuple[SuiteMember, ...]
    id_lists: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, Sequence[SuiteMember]] = field(default_factory=dict)
    note: str = ""


_OPENOOD = "OpenOOD v1.5, scripts/download/download.py of https://github.com/Jingkang50/OpenOOD"
_CLASSIC, _LARGE = "images_classic", "images_largescale"


def _openood(
    benchmark: str, name: str, group: str | None, folder: str, *lists: str, official: bool = False
) -> SuiteMember:
    """Return a set of an OpenOOD benchmark.

    Args:
        benchmark: the name of its folder of lists.
        name: of the set in the answer.
        group: ``near``, ``far``, or None for one that is for validation only.
        folder: of its images, below the root.
        official: whether it is taken only when asked for.
        lists: possible names of the list; the first that is there is taken.
    """
    name_of_download = "texture" if name == "textures" else name
    files = [f"benchmark_imglist/{benchmark}/{file}.txt" for file in lists]
    return SuiteMember(
        name=name,
        group=group,
        files=tuple(files),
        origin=f"{name_of_download} of {_OPENOOD}",
        folder=folder,
        official=official,
    )


def _id_lists(benchmark: str, test: int, val: int, images: str) -> dict[str, str]:
    """Describe OpenOOD's two lists of the in-distribution images of a benchmark.

    Args:
        benchmark: its name.
        test, val: how many images each list has.
        images: what they are taken from.

    Returns:
        By path of the list, a description.
    """
    folder = f"benchmark_imglist/{benchmark}"
    total = test + val
    return {
        f"{folder}/test_{benchmark}.txt": f"OpenOOD's ID test list: {test:,} of the {total:,} {images}",
        f"{folder}/val_{benchmark}.txt": f"OpenOOD's ID validation list: {val:,} of the {total:,} {images}",
    }


FULL_SPECTRUM = "full-spectrum"


def _parts_of_benchmark(
    benchmark: str, folder: str, ood_val: SuiteMember, shifted: Mapping[str, Sequence[str]]
) -> dict[str, Sequence[SuiteMember]]:
    """Return the parts that ``openood:`` opens: ID data, covariate-shifted sets, and test data with all of these.

    Args:
        benchmark: its name.
        folder: of its images.
        ood_val: its OOD validation set.
        shifted: by covariate-shifted set, the possible names of its list; the first that is there is taken.

    Returns:
        The sets of each part by its name: ``train``, ``val``, ``test`` and ``ood-val``; where there are shifted sets,
        each by its own name, and ``full-spectrum``: the test set and all of them.
    """
    parts: dict[str, Sequence[SuiteMember]] = {}
    for part in ("train", "val", "test"):
        id_set = _openood(benchmark, benchmark, None, folder, f"{part}_{benchmark}")
        parts[part] = [id_set]
    parts["ood-val"] = [ood_val]
    if not shifted:
        return parts
    shifted_sets = {}
    for name, lists in shifted.items():
        shifted_sets[name] = _openood(benchmark, name, None, folder, *lists)
    parts[FULL_SPECTRUM] = [*parts["test"], *shifted_sets.values()]
    for name, shifted_set in shifted_sets.items():
        parts[name] = [shifted_set]
    return parts


def _imagenet(benchmark: str, test: int, val: int, images: str, shifted: Mapping[str, Sequence[str]]) -> OodBenchmark:
    """Return the benchmark of ImageNet, or of some of its classes; ``test`` and ``val`` are numbers of ``images``."""
    ood_val = _openood(benchmark, "openimage_o", None, _LARGE, "val_openimage_o")
    return OodBenchmark(
        samples="images",
        members=(
            ood_val,
            _openood(benchmark, "ssb_hard", NEAR, _LARGE, "test_ssb_hard"),
            _openood(benchmark, "ninco", NEAR, _LARGE, "test_ninco"),
            _openood(benchmark, "inaturalist", FAR, _LARGE, "test_inaturalist"),
            _openood(benchmark, "textures", FAR, _CLASSIC, "test_textures", "test_texture"),
            _openood(benchmark, "openimage_o", FAR, _LARGE, "test_openimage_o", official=True),
        ),
        id_lists=_id_lists(benchmark, test, val, images),
        parts=_parts_of_benchmark(benchmark, _LARGE, ood_val, shifted),
        note="OpenOOD also counts the test part of OpenImage-O as far; here the set is for validation only, unless "
        f"openood-{benchmark}:official is asked for",
    )


def _cifar(benchmark: str, other: str, classes: int, shifted: Mapping[str, Sequence[str]]) -> OodBenchmark:
    """Return the benchmark of one of the two CIFAR sets, for which the ``other`` one is a near OOD set."""
    ood_val = _openood(benchmark, "tin", None, _CLASSIC, "val_tin")
    return OodBenchmark(
        samples="images",
        members=(
            ood_val,
            _openood(benchmark, other, NEAR, _CLASSIC, f"test_{other}"),
            _openood(benchmark, "tin", NEAR, _CLASSIC, "test_tin", official=True),
            _openood(benchmark, "mnist", FAR, _CLASSIC, "test_mnist"),
            _openood(benchmark, "svhn", FAR, _CLASSIC, "test_svhn"),
            _openood(benchmark, "texture", FAR, _CLASSIC, "test_texture", "test_textures"),
            _openood(benchmark, "places365", FAR, _CLASSIC, "test_places365"),
        ),
        id_lists=_id_lists(benchmark, 9_000, 1_000, f"test images of CIFAR-{classes}"),
        parts=_parts_of_benchmark(benchmark, _CLASSIC, ood_val, shifted),
        note="OpenOOD also counts a part of TinyImageNet (tin) as near; here it is for validation only, unless "
        f"openood-{benchmark}:official is asked for",
    )


_CUSTOMER_REVIEWS = SuiteMember(
    "customer_reviews", NEAR, ("customer_reviews", "cr"), "Customer Reviews (Hu & Liu 2004)", stands_in=True
)
_NEWSGROUPS = ("20ng", "20_newsgroups", "20newsgroups", "newsgroups")

SUITES: dict[str, OodBenchmark] = {
    "openood-imagenet": _imagenet(
        "imagenet",
        test=45_000,
        val=5_000,
        images="validation images of ImageNet-1k",
        shifted={
            "imagenet_v2": ("test_imagenet_v2", "test_imagenetv2"),
            "imagenet_c": ("test_imagenet_c", "test_imagenetc"),
            "imagenet_r": ("test_imagenet_r", "test_imagenetr"),
        },
    ),
    "openood-imagenet200": _imagenet(
        "imagenet200",
        test=9_000,
        val=1_000,
        images="validation images of 200 classes of ImageNet-1k",
        shifted={
            "imagenet_v2": ("test_imagenet200_v2", "test_imagenet_v2"),
            "imagenet_c": ("test_imagenet200_c", "test_imagenet_c"),
            "imagenet_r": ("test_imagenet200_r", "test_imagenet_r"),
        },
    ),
    "openood-cifar100": _cifar("cifar100", other="cifar10", classes=100, shifted={}),
    "openood-cifar10": _cifar("cifar10", other="cifar100", classes=10, shifted={"cifar10c": ("test_cifar10c",)}),
    "sst2-paper": OodBenchmark(
        samples="texts",
        members=(
            SuiteMember("yelp", NEAR, ("yelp", "yelp_polarity"), "Yelp review polarity (Zhang et al. 2015)"),
            SuiteMember("amazon", NEAR, ("amazon", "amazon_polarity"), "Amazon review polarity (Zhang et al. 2015)"),
            _CUSTOMER_REVIEWS,
            SuiteMember("20ng", FAR, _NEWSGROUPS, "20 Newsgroups (http://qwone.com/~jason/20Newsgroups)"),
            SuiteMember("trec", FAR, ("trec",), "TREC questions (Li & Roth 2002)"),
            SuiteMember("mnli", FAR, ("mnli", "multinli"), "MNLI, matched, of GLUE (https://gluebenchmark.com)"),
            SuiteMember("rte", FAR, ("rte",), "RTE of GLUE (https://gluebenchmark.com)"),
            SuiteMember("wmt16", FAR, ("wmt16",), "WMT16, the English side (https://www.statmt.org/wmt16)"),
            SuiteMember("agnews", None, ("agnews", "ag_news"), "AG News (Zhang et al. 2015)"),
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

    def document(self) -> dict[str, str | list[str]]:
        """Return the suite as recorded in artefacts, without its data sets."""
        return {
            "name": self.name,
            "left_out": self.left_out,
            "notes": self.notes,
        }


def find_suite(choice: SuiteChoice, root: str, taken: Iterable[str] = ()) -> FoundSuite:
    """Find the OOD sets of a suite below a folder.

    Args:
        choice: the suite, the sets asked for, and whether some may be missing.
        root: the folder of the data.
        taken: names of other OOD sets beside these.

    Raises:
        UsageError: for a set that the suite does not have, or has for validation only, or a name that is taken.
        InputError: for a folder that does not exist; listing every set that is missing or cannot be told from others.
    """
    suite = SUITES[choice.name]
    folder = os.path.expanduser(root)
    if not os.path.isdir(folder):
        raise InputError(f"--ood-root {root}: no such folder")
    wanted = _wanted_members(choice, suite)
    specs: dict[SuiteMember, str] = {}
    missing: dict[SuiteMember, str] = {}
    for member in wanted:
        spec, why = _find_member(folder, member)
        if spec is None:
            missing[member] = why
        else:
            specs[member] = spec

    notes = []
    has_official = any(member.official for member in wanted)
    if suite.note and not has_official:
        notes.append(suite.note)
    if not choice.sets:
        notes += _replace_missing(suite, folder, specs, missing)
    if missing and not specs:
        what_it_holds = "benchmark_imglist and images_..."
        if suite.samples == "texts":
            what_it_holds = "the files of texts"
        way_out = f"is --ood-root the folder that holds {what_it_holds}?"
        raise _sets_missing(choice, root, len(wanted), missing, way_out)
    if missing and not choice.partial:
        way_out = f"--ood-suite {choice.name}:partial goes on with those that are there"
        raise _sets_missing(choice, root, len(wanted), missing, way_out)
    missing_names = [member.name for member in missing]
    if missing:
        notes.append(f"without {', '.join(missing_names)}, which {_is_or_are(missing)} not there")

    sets = []
    for member in suite.members:  # in the order of the suite, stand-ins too
        if member in specs:
            sets.append(OodSet(member.name, member.group, specs[member]))
    _check_names_are_free(choice, sets, taken)
    return FoundSuite(choice.name, sets, missing_names, notes)


def _check_names_are_free(choice: SuiteChoice, sets: Sequence[OodSet], taken: Iterable[str]) -> None:
    """Refuse sets of a suite that have the name of another OOD set of the command.

    Raises:
        UsageError: naming them.
    """
    taken_names = set(taken)
    twice = [ood_set.name for ood_set in sets if ood_set.name in taken_names]
    if twice:
        names = ", ".join(twice)
        raise UsageError(
            f"--ood-suite {choice.name} and --ood both have {names}", hint="give the --ood set another name"
        )


def _sets_missing(
    choice: SuiteChoice, root: str, wanted: int, missing: Mapping[SuiteMember, str], way_out: str
) -> InputError:
    """Return the error of a suite some of whose sets are missing.

    Args:
        choice: the suite.
        root: the folder that was searched.
        wanted: how many sets are wanted.
        missing: why each of those that are missing was not found.
        way_out: the end of the hint.
    """
    return InputError(
        f"--ood-suite {choice.name}: {len(missing)} of {wanted} sets are not under --ood-root {root}",
        hint=f"nothing is downloaded; {way_out}",
        problems=missing.values(),
    )


def id_list_of(spec: str) -> str | None:
    """Describe in a sentence an ID data set whose SPEC names one of OpenOOD's ID lists; None for any other."""
    name, _, _ = spec.partition("?")
    path = name.replace(os.sep, "/")
    if path.startswith("openood:"):
        benchmark, _, part = path.removeprefix("openood:").partition("/")
        suite = SUITES.get(f"openood-{benchmark}")
        if suite is not None and part in suite.parts:
            return _words_of_part(suite, part)
    return _words_of_list(path)


def _words_of_part(suite: OodBenchmark, part: str) -> str | None:
    """Describe the data of ``openood:NAME/PART``; None where they are no ID list."""
    id_set, *shifted_sets = suite.parts[part]
    id_list = id_set.files[0]
    if not shifted_sets:
        return _words_of_list(f"/{id_list}")
    names = ", ".join(member.name for member in shifted_sets)
    return f"OpenOOD's full spectrum: {suite.id_lists[id_list]}, and {names}"


def _words_of_list(path: str) -> str | None:
    """Describe a file that is one of OpenOOD's ID lists; None for any other."""
    for suite in SUITES.values():
        for id_list, sentence in suite.id_lists.items():
            if path.endswith(id_list):
                return sentence
    return None


def read_openood(spec: Spec, limit: int | None, seed: int = 0) -> tuple[Dataset, RawLabels]:
    """Open ``openood:NAME/PART?root=FOLDER``, one part of the data of an OpenOOD benchmark; nothing is downloaded.

    A part of several sets is opened as one.

    Args:
        spec: of the part.
        limit: how many samples; None: all.
        seed: draws them where the set is sorted by class, so that every class is there.

    Returns:
        The data set, and its labels before they are mapped to the classes of a model.

    Raises:
        UsageError: for a benchmark or part that does not exist, or without a root.
        InputError: listing the data that are not there.
    """
    spec.check_query(("root",))
    members = _members_of_part(spec)
    root = os.path.expanduser(spec.query.get("root", ""))
    if not root:
        raise UsageError(f"{spec.where} needs the folder of the data", hint=f"openood:{spec.path}?root=FOLDER")
    lists: list[Spec] = []
    problems = []
    for member in members:
        folder_of_images = member.folder or ""
        list_spec, why = _find_image_list(root, member.files, folder_of_images)
        if list_spec is None:
            problems.append(f"{why}; it comes from {member.origin}")
        else:
            lists.append(parse_spec(list_spec, spec.option))
    if problems:
        raise InputError(f"{spec.where}: not all of it is there", hint="nothing is downloaded", problems=problems)
    first = lists[0]
    with_root = replace(spec, query=first.query)  # ?root=, the folder of the images, is the same for all of them
    if len(lists) > 1:
        paths = [image_list.path for image_list in lists]
        return read_image_lists(with_root, paths, limit)
    return read_image_list(replace(with_root, path=first.path), limit, seed)


def _members_of_part(spec: Spec) -> Sequence[SuiteMember]:
    """Return the sets of the NAME/PART of an ``openood:`` SPEC.

    Raises:
        UsageError: for a benchmark or part that does not exist, listing those that do.
    """
    benchmark, _, part = spec.path.partition("/")
    benchmarks = {}
    for name, suite in SUITES.items():
        if suite.parts:
            benchmarks[name.removeprefix("openood-")] = suite.parts
    parts = benchmarks.get(benchmark)
    if parts is None:
        hint = f"there are {', '.join(benchmarks)}"
    elif part not in parts:
        hint = f"{benchmark} has {', '.join(parts)}"
    else:
        return parts[part]
    raise UsageError(f"{spec.where}: OpenOOD has no {spec.path!r} here", hint=f"openood:NAME/PART; {hint}")


def _is_or_are(members: Collection[SuiteMember]) -> str:
    """Return the verb of a sentence about some sets."""
    if len(members) == 1:
        return "is"
    return "are"


def _wanted_members(choice: SuiteChoice, suite: OodBenchmark) -> list[SuiteMember]:
    """Return the sets of a suite that are asked for: those named, or else all that are tested by default.

    Neither those that stand in for others are tested by default, nor the ones that only ``:official`` asks for.

    Raises:
        UsageError: for sets that the suite does not have, or has for validation only.
    """
    tested = [member for member in suite.members if member.group is not None]
    has_official = any(member.official for member in tested)
    if choice.official and not has_official:
        raise UsageError(f"--ood-suite {choice.name} has no other official sets", hint=f"--ood-suite {choice.name}")
    if choice.sets:
        _check_sets(choice, suite)
        return [member for member in tested if member.name in choice.sets]
    wanted = []
    for member in tested:
        if member.stands_in:
            continue
        if member.official and not choice.official:
            continue
        wanted.append(member)
    return wanted


def _check_sets(choice: SuiteChoice, suite: OodBenchmark) -> None:
    """Refuse sets asked for by name that the suite does not have, or has for validation only.

    Raises:
        UsageError: naming them, with the sets that there are.
    """
    # Where two sets have one name, the first is for validation and the second to test on: the second one counts.
    groups = {member.name: member.group for member in suite.members}
    tested = [member.name for member in suite.members if member.group is not None]
    listed = ", ".join(tested)
    problems = []
    for name in choice.sets:
        if name not in groups:
            problems.append(f"no set {name!r}: there are {listed}")
        elif groups[name] is None:
            problems.append(f"{name} is for validation only (circuits and thresholds are chosen on it): never tested")
    if problems:
        raise UsageError(f"--ood-suite {choice.name}: not sets to test on", problems=problems)


def _replace_missing(
    suite: OodBenchmark, folder: str, specs: dict[SuiteMember, str], missing: dict[SuiteMember, str]
) -> list[str]:
    """Put stand-ins, where their files are there, in place of the missing sets of their group (near or far).

    Args:
        suite: the suite.
        folder: where its sets are.
        specs: the SPECs of the sets that were found; stand-ins are added.
        missing: why the others were not found; those that something stands in for are taken out.

    Returns:
        A sentence for each stand-in.
    """
    notes = []
    for member in suite.members:
        if not member.stands_in:
            continue
        replaced_sets = [other for other in missing if other.group == member.group]
        if not replaced_sets:
            continue
        spec, _ = _find_member(folder, member)
        if spec is None:
            continue
        specs[member] = spec
        names = " and ".join(other.name for other in replaced_sets)
        verb = _is_or_are(replaced_sets)
        notes.append(f"{member.name} stands in for {names}, which {verb} not there ({member.group})")
        for other in replaced_sets:
            del missing[other]
    return notes


def _find_member(folder: str, member: SuiteMember) -> tuple[str | None, str]:
    """Return the SPEC of a set below a folder, None where it is not there, and a line for a message in that case.

    The line says what was looked for, and where the set comes from.
    """
    if member.folder is None:
        spec, why = _find_text_file(folder, member.files)
    else:
        spec, why = _find_image_list(folder, member.files, member.folder)
    purpose = member.group or "validation"
    return spec, f"{member.name} ({purpose}): {why}; it comes from {member.origin}"


def _find_image_list(folder: str, lists: Sequence[str], below_root: str) -> tuple[str | None, str]:
    """Return the SPEC of an image list whose first image is there; without one, None and what was looked for.

    Args:
        folder: the folder of the data, or the one above it.
        lists: paths of the list below it; the first that is there with its images is taken.
        below_root: the folder of the images, below it as well.
    """
    why = f"no {' or '.join(lists)}"
    for below in _BELOW:
        base = os.path.join(folder, below) if below else folder
        images_folder = os.path.join(base, below_root)
        for name in lists:
            path = os.path.join(base, *name.split("/"))
            if not os.path.isfile(path):
                continue
            first_image = _first_path_in(path)
            if not first_image:
                first_image = "(none)"
            elif os.path.isfile(os.path.join(images_folder, first_image)):
                return f"{path}?root={setting_value(images_folder)}", ""
            missing_image = os.path.join(below_root, first_image)
            why = f"{name} is there, and its first image is not: {missing_image}"
    return None, why


def _first_path_in(path: str) -> str | None:
    """Return the path in the first line of an image list; None for an empty one."""
    with open(path, encoding="utf-8-sig", errors="replace") as file:
        while line := file.readline(_LONGEST_LINE):
            if line.strip():
                first_path, _ = split_line(line.rstrip("\n"))
                return first_path
    return None


def _find_text_file(folder: str, stems: tuple[str, ...]) -> tuple[str | None, str]:
    """Return the SPEC of the one text file whose name fits best; without one, None and what was looked for.

    Args:
        folder: the folder of the data.
        stems: names of the set, see :attr:`SuiteMember.files`; a file has one of them and one of the endings of texts.
    """
    paths_by_rank: dict[int, list[str]] = {}
    for name in sorted(os.listdir(folder)):
        if not name.lower().endswith(TEXT_SUFFIXES):
            continue
        path = os.path.join(folder, name)
        if not os.path.isfile(path):
            continue
        rank = _rank_of_name(name, stems)
        if rank is not None:
            paths_by_rank.setdefault(rank, []).append(path)
    if not paths_by_rank:
        suffixes = {suffix.removesuffix(".gz") for suffix in TEXT_SUFFIXES}
        endings = "|".join(sorted(suffixes))
        names = " or ".join(f"{stem}.* or {stem}_*" for stem in stems)
        return None, f"no file {names} ({endings})"
    best_rank = min(paths_by_rank)
    best_paths = paths_by_rank[best_rank]
    if len(best_paths) > 1:
        listed = ", ".join(map(os.path.basename, best_paths))
        return None, f"several files may be it: {listed}"
    return best_paths[0], ""


def _rank_of_name(name: str, stems: tuple[str, ...]) -> int | None:
    """Rank a file name, 0 being best: the name itself, a test part, another part; None for another set's name.

    Parts for training are never taken; of MNLI's two test parts the matched one is.

    Args:
        name: of a file with one of the endings of texts.
        stems: names of the set.
    """
    lower = name.lower()
    suffixes = [suffix for suffix in TEXT_SUFFIXES if lower.endswith(suffix)]
    longest_suffix = max(suffixes, key=len)
    stem = re.sub(r"[-. ]+", "_", lower.removesuffix(longest_suffix))
    words = stem.split("_")
    if "train" in words or "mismatched" in words:
        return None
    if stem in stems:
        return 0
    is_part = any(stem.startswith(f"{known}_") for known in stems)
    if not is_part:
        return None
    if "test" in words:
        return 1
    return 2
