"""``--ood-suite``: the OOD sets of a benchmark by its name, found below a folder.

``openood:NAME/PART?root=FOLDER`` opens the in-distribution data, alone or with the sets of shifted covariates.

Nothing is downloaded: one error names every missing set, where it was looked for, and where it comes from.

OpenOOD's layout and lists: https://github.com/Jingkang50/OpenOOD (v1.5, arXiv 2306.09301), ``configs/datasets`` and
``scripts/download/download.py``. Which sets are for validation follows the Hydra Ensembles paper: the set on which
circuits are chosen (OpenImage-O, TinyImageNet, AG News) is not tested. OpenOOD itself also counts a test part of
OpenImage-O as far and of TinyImageNet as near; ``:official`` asks for these.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hydractl.data.base import Dataset
from hydractl.data.files import read_image_list, read_image_lists, split_line
from hydractl.data.labels import RawLabels
from hydractl.errors import InputError, UsageError
from hydractl.expressions.data_sets import TEXT_SUFFIXES, DataSpec, OodSet, SuiteChoice, setting_value

# --- which sets each suite has ----------------------------------------------------------------------------------------

NEAR, FAR = "near", "far"


@dataclass(frozen=True)
class SuiteMember:
    """One set of a suite.

    Attributes:
        name: the name of the set in the answer.
        group: ``near`` or ``far``; None for a set that is only for validation.
        files: for images, possible paths of OpenOOD's list below the root, because names changed between versions; the
            first that exists is used. For texts, names that the file may have or start with, in lower case and with
            ``_`` in place of ``-``, ``.`` and spaces.
        origin: where the set comes from, for the message when it is missing.
        folder: the folder below the root to which the paths in the list are relative; None for texts.
        official: whether the set is only used when asked for, because OpenOOD has it and the paper leaves it out.
    """

    name: str
    group: str | None
    files: tuple[str, ...]
    origin: str
    folder: str | None = None
    official: bool = False


@dataclass(frozen=True)
class OodBenchmark:
    """The sets of one benchmark.

    Attributes:
        samples: ``images`` or ``texts``.
        members: all its sets, including those that are only for validation.
        id_lists: describes each of OpenOOD's lists of in-distribution images, by path. They are not full test sets.
        parts: the sets that make up each PART of ``openood:NAME/PART``, by the name of the part.
        note: how the suite differs from OpenOOD's, for an answer without the official sets.
    """

    samples: str
    members: tuple[SuiteMember, ...]
    id_lists: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, Sequence[SuiteMember]] = field(default_factory=dict)
    note: str = ""


_OPENOOD = "OpenOOD v1.5, scripts/download/download.py of https://github.com/Jingkang50/OpenOOD"
FULL_SPECTRUM = "full-spectrum"

_LARGE_SETS = ("openimage_o", "ssb_hard", "ninco", "inaturalist")
"""The sets in OpenOOD's folder ``images_largescale``, beside those of ImageNet; others are in ``images_classic``."""

_OTHER_LISTS = {"textures": ("test_textures", "test_texture"), "texture": ("test_texture", "test_textures")}
"""The possible names of the list of a set; that of any other is ``test_`` and its name."""


def _openood(
    benchmark: str, name: str, group: str | None = None, lists: Sequence[str] | None = None, *, official: bool = False
) -> SuiteMember:
    """Return one set of an OpenOOD benchmark.

    Args:
        benchmark: the name of the benchmark, which is that of its folder of lists, for example ``cifar10``.
        name: the name of the set in the answer.
        group: ``near`` or ``far``; None for a set that is only for validation.
        lists: possible names of the list; the first that exists is used.
        official: whether the set is only used when asked for.
    """
    if lists is None:
        lists = _OTHER_LISTS.get(name, (f"test_{name}",))
    files = [f"benchmark_imglist/{benchmark}/{file}.txt" for file in lists]
    is_large = name in _LARGE_SETS or name.startswith("imagenet")
    name_of_download = "texture" if name == "textures" else name
    return SuiteMember(
        name=name,
        group=group,
        files=tuple(files),
        origin=f"{name_of_download} of {_OPENOOD}",
        folder="images_largescale" if is_large else "images_classic",
        official=official,
    )


def _benchmark(
    name: str,
    *,
    ood_val: str,
    near: Sequence[str],
    far: Sequence[str],
    test: int,
    val: int,
    images: str,
    note: str,
    shifted: Mapping[str, Sequence[str]],
) -> OodBenchmark:
    """Return one of OpenOOD's benchmarks.

    Args:
        name: its name, for example ``cifar10``.
        ood_val: the OOD set for validation; its test part is only used when the official sets are asked for.
        near, far: the sets to test on.
        test, val: the number of images in OpenOOD's ID test list and ID validation list.
        images: the images from which both lists are taken.
        note: what OpenOOD counts otherwise, the beginning of the suite's note.
        shifted: for each covariate-shifted set the possible names of its list; the first that exists is used.
    """
    ood_val_set = _openood(name, ood_val, None, [f"val_{ood_val}"])
    members = [ood_val_set]
    for group, tested in ((NEAR, near), (FAR, far)):
        members += [_openood(name, tested_set, group, official=tested_set == ood_val) for tested_set in tested]

    # The parts that `openood:NAME/PART` opens: ID data, and with covariate shifts, together and alone.
    parts: dict[str, Sequence[SuiteMember]] = {}
    for part in ("train", "val", "test"):
        parts[part] = [_openood(name, name, None, [f"{part}_{name}"])]
    parts["ood-val"] = [ood_val_set]
    shifted_sets = [_openood(name, shifted_set, None, lists) for shifted_set, lists in shifted.items()]
    if shifted_sets:
        parts[FULL_SPECTRUM] = [*parts["test"], *shifted_sets]
    for shifted_set in shifted_sets:
        parts[shifted_set.name] = [shifted_set]

    # What the two lists of ID images are, which are no full test sets.
    id_lists = {}
    for part, words, count in (("test", "test", test), ("val", "validation", val)):
        (path,) = parts[part][0].files
        id_lists[path] = f"OpenOOD's ID {words} list: {count:,} of the {test + val:,} {images}"
    return OodBenchmark(
        samples="images",
        members=tuple(members),
        id_lists=id_lists,
        parts=parts,
        note=f"{note} is for validation only, unless openood-{name}:official is asked for",
    )


_OF_IMAGENET = "OpenOOD also counts the test part of OpenImage-O as far; here the set"
_OF_CIFAR = "OpenOOD also counts a part of TinyImageNet (tin) as near; here it"
_NEAR_IMAGENET = ("ssb_hard", "ninco")
_FAR_FROM_IMAGENET = ("inaturalist", "textures", "openimage_o")
_FAR_FROM_CIFAR = ("mnist", "svhn", "texture", "places365")
_NEWSGROUPS = ("20ng", "20_newsgroups", "20newsgroups", "newsgroups")

SUITES: dict[str, OodBenchmark] = {
    "openood-imagenet": _benchmark(
        "imagenet",
        ood_val="openimage_o",
        near=_NEAR_IMAGENET,
        far=_FAR_FROM_IMAGENET,
        test=45_000,
        val=5_000,
        images="validation images of ImageNet-1k",
        note=_OF_IMAGENET,
        shifted={
            "imagenet_v2": ("test_imagenet_v2", "test_imagenetv2"),
            "imagenet_c": ("test_imagenet_c", "test_imagenetc"),
            "imagenet_r": ("test_imagenet_r", "test_imagenetr"),
        },
    ),
    "openood-imagenet200": _benchmark(
        "imagenet200",
        ood_val="openimage_o",
        near=_NEAR_IMAGENET,
        far=_FAR_FROM_IMAGENET,
        test=9_000,
        val=1_000,
        images="validation images of 200 classes of ImageNet-1k",
        note=_OF_IMAGENET,
        shifted={
            "imagenet_v2": ("test_imagenet200_v2", "test_imagenet_v2"),
            "imagenet_c": ("test_imagenet200_c", "test_imagenet_c"),
            "imagenet_r": ("test_imagenet200_r", "test_imagenet_r"),
        },
    ),
    "openood-cifar100": _benchmark(
        "cifar100",
        ood_val="tin",
        near=("cifar10", "tin"),
        far=_FAR_FROM_CIFAR,
        test=9_000,
        val=1_000,
        images="test images of CIFAR-100",
        note=_OF_CIFAR,
        shifted={},
    ),
    "openood-cifar10": _benchmark(
        "cifar10",
        ood_val="tin",
        near=("cifar100", "tin"),
        far=_FAR_FROM_CIFAR,
        test=9_000,
        val=1_000,
        images="test images of CIFAR-10",
        note=_OF_CIFAR,
        shifted={"cifar10c": ("test_cifar10c",)},
    ),
    "sst2-paper": OodBenchmark(
        samples="texts",
        members=(
            SuiteMember("yelp", NEAR, ("yelp", "yelp_polarity"), "Yelp review polarity (Zhang et al. 2015)"),
            SuiteMember("amazon", NEAR, ("amazon", "amazon_polarity"), "Amazon review polarity (Zhang et al. 2015)"),
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


# --- find the sets on the disk ----------------------------------------------------------------------------------------

# The data may lie directly in the given folder, or in `data` of a checkout of OpenOOD.
_BELOW = ("", "data")

_LONGEST_LINE = 65_536


@dataclass
class FoundSuite:
    """A suite after the search for its files.

    Attributes:
        name: the name of the suite.
        sets: the OOD sets to test on (name, group and SPEC), in the order of the suite.
        left_out: the names of missing sets that the user agreed to leave out (``:partial``).
        notes: sentences that the answer must contain.
    """

    name: str
    sets: list[OodSet]
    left_out: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def document(self) -> dict[str, str | list[str]]:
        """Return the record of the suite for artefacts, without its data sets."""
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
        taken: the names of the command's other OOD sets.

    Raises:
        UsageError: if the suite does not have an asked set or has it only for validation, or if a name is taken.
        InputError: if the folder does not exist, or sets are missing or ambiguous (all of them are listed).
    """
    suite = SUITES[choice.name]
    folder = os.path.expanduser(root)
    if not os.path.isdir(folder):
        raise InputError(f"--ood-root {root}: no such folder")

    # Look for every wanted set.
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

    # If all sets are missing the folder is probably wrong. If only some are, the user may go on without them.
    if missing and not specs:
        what_it_holds = "the files of texts" if suite.samples == "texts" else "benchmark_imglist and images_..."
        way_out = f"is --ood-root the folder that holds {what_it_holds}?"
        raise _sets_missing(choice, root, len(wanted), missing, way_out)
    if missing and not choice.partial:
        way_out = f"--ood-suite {choice.name}:partial goes on with those that are there"
        raise _sets_missing(choice, root, len(wanted), missing, way_out)
    missing_names = [member.name for member in missing]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        notes.append(f"without {', '.join(missing_names)}, which {verb} not there")

    sets = []
    for member, spec in specs.items():
        data = DataSpec.of_option(f"--ood {member.name}", spec)
        sets.append(OodSet(data.text, member.name, member.group, data))
    _check_names_are_free(choice, sets, taken)
    return FoundSuite(choice.name, sets, missing_names, notes)


def _check_names_are_free(choice: SuiteChoice, sets: Sequence[OodSet], taken: Iterable[str]) -> None:
    """Refuse sets of a suite that have the same name as another OOD set of the command.

    Raises:
        UsageError: naming these sets.
    """
    taken_names = set(taken)
    doubly_used = [ood_set.name for ood_set in sets if ood_set.name in taken_names]
    if doubly_used:
        names = ", ".join(doubly_used)
        raise UsageError(
            f"--ood-suite {choice.name} and --ood both have {names}", hint="give the --ood set another name"
        )


def _sets_missing(
    choice: SuiteChoice, root: str, wanted: int, missing: Mapping[SuiteMember, str], way_out: str
) -> InputError:
    """Return the error of a suite with missing sets.

    Args:
        choice: the suite.
        root: the folder that was searched.
        wanted: the number of wanted sets.
        missing: for each missing set, why it was not found.
        way_out: the end of the hint, which says what the user can do.
    """
    return InputError(
        f"--ood-suite {choice.name}: {len(missing)} of {wanted} sets are not under --ood-root {root}",
        hint=f"nothing is downloaded; {way_out}",
        problems=missing.values(),
    )


def id_list_of(spec: str) -> str | None:
    """Return a sentence that describes an ID data set if its SPEC names one of OpenOOD's ID lists; else None."""
    name, _, _ = spec.partition("?")
    path = name.replace(os.sep, "/")

    # The SPEC names a part of a benchmark.
    if path.startswith("openood:"):
        benchmark, _, part = path.removeprefix("openood:").partition("/")
        suite = SUITES.get(f"openood-{benchmark}")
        if suite is not None and part in suite.parts:
            # Parts begin with the ID set, and only the full spectrum has more sets.
            id_set, *shifted_sets = suite.parts[part]
            id_list = id_set.files[0]
            if not shifted_sets:
                return _description_of_list(f"/{id_list}")
            names = ", ".join(member.name for member in shifted_sets)
            return f"OpenOOD's full spectrum: {suite.id_lists[id_list]}, and {names}"

    # The SPEC may be the path of a list.
    return _description_of_list(path)


def _description_of_list(path: str) -> str | None:
    """Describe a file that is one of OpenOOD's ID lists; None for any other file."""
    for suite in SUITES.values():
        for id_list, sentence in suite.id_lists.items():
            if path.endswith(id_list):
                return sentence
    return None


def read_openood(spec: DataSpec, limit: int | None) -> tuple[Dataset, RawLabels]:
    """Open ``openood:NAME/PART?root=FOLDER``, one part of the data of an OpenOOD benchmark. Nothing is downloaded.

    If the part has several sets (``full-spectrum``), they are opened as one data set.

    Args:
        spec: the SPEC of the part.
        limit: how many samples to take of several sets, the same share of each; None means all.

    Returns:
        The data set, and its labels before they are mapped to the classes of a model.

    Raises:
        UsageError: for a benchmark or part that does not exist, or a SPEC without a root.
        InputError: if data are missing; all of them are listed.
    """
    spec.check_query(("root",))
    members = _members_of_part(spec)
    root = os.path.expanduser(spec.query.get("root", ""))
    if not root:
        raise UsageError(f"{spec.where} needs the folder of the data", hint=f"openood:{spec.path}?root=FOLDER")

    # Find the image list of every set of the part.
    list_specs: list[DataSpec] = []
    problems = []
    for member in members:
        folder_of_images = member.folder or ""
        list_spec, why = _find_image_list(root, member.files, folder_of_images)
        if list_spec is None:
            problems.append(f"{why}; it comes from {member.origin}")
        else:
            list_specs.append(DataSpec.of_option(spec.option, list_spec))
    if problems:
        raise InputError(f"{spec.where}: not all of it is there", hint="nothing is downloaded", problems=problems)

    # Open the lists under the name of the part. Their ?root=, the folder of the images, is the same for all.
    first = list_specs[0]
    with_root = replace(spec, query=first.query)
    if len(list_specs) > 1:
        paths = [list_spec.path for list_spec in list_specs]
        return read_image_lists(with_root, paths, limit)
    return read_image_list(replace(with_root, path=first.path), limit)


def _members_of_part(spec: DataSpec) -> Sequence[SuiteMember]:
    """Return the sets that make up one part of a benchmark, for a SPEC ``openood:NAME/PART``.

    Raises:
        UsageError: for a benchmark or part that does not exist; the message lists those that do.
    """
    # Only OpenOOD's benchmarks have parts. ``NAME`` is the name of the suite without its prefix.
    parts_by_benchmark = {}
    for name, suite in SUITES.items():
        if suite.parts:
            benchmark_name = name.removeprefix("openood-")
            parts_by_benchmark[benchmark_name] = suite.parts

    benchmark, _, part = spec.path.partition("/")
    unknown = f"{spec.where}: OpenOOD has no {spec.path!r} here"
    if benchmark not in parts_by_benchmark:
        benchmarks = ", ".join(parts_by_benchmark)
        raise UsageError(unknown, hint=f"openood:NAME/PART; there are {benchmarks}")
    members_by_part = parts_by_benchmark[benchmark]
    if part not in members_by_part:
        parts = ", ".join(members_by_part)
        raise UsageError(unknown, hint=f"openood:NAME/PART; {benchmark} has {parts}")
    return members_by_part[part]


def _wanted_members(choice: SuiteChoice, suite: OodBenchmark) -> list[SuiteMember]:
    """Return the sets of a suite to look for: those that the user named, else all that are tested by default.

    By default, official sets are tested only if ``:official`` is asked for.

    Raises:
        UsageError: for sets that the suite does not have or has only for validation, and for ``:official`` if the suite
            has no official sets.
    """
    # Sets without a group are for validation.
    tested = [member for member in suite.members if member.group is not None]
    has_official = any(member.official for member in tested)
    if choice.official and not has_official:
        raise UsageError(f"--ood-suite {choice.name} has no other official sets", hint=f"--ood-suite {choice.name}")

    # Sets that the user named are looked for, also official ones.
    if choice.sets:
        _check_sets(choice, suite)
        return [member for member in tested if member.name in choice.sets]

    # Otherwise all that are tested by default.
    return [member for member in tested if choice.official or not member.official]


def _check_sets(choice: SuiteChoice, suite: OodBenchmark) -> None:
    """Refuse sets that the user named, but the suite does not have or has only for validation.

    Raises:
        UsageError: naming them and the sets that can be tested.
    """
    # Two sets may have the same name, first the one for validation and then the one to test on. The later one counts.
    group_by_name = {member.name: member.group for member in suite.members}
    tested = [member.name for member in suite.members if member.group is not None]
    listed = ", ".join(tested)
    problems = []
    for name in choice.sets:
        if name not in group_by_name:
            problems.append(f"no set {name!r}: there are {listed}")
        elif group_by_name[name] is None:
            problems.append(f"{name} is for validation only (circuits and thresholds are chosen on it): never tested")
    if problems:
        raise UsageError(f"--ood-suite {choice.name}: not sets to test on", problems=problems)


def _find_member(folder: str, member: SuiteMember) -> tuple[str | None, str]:
    """Return the SPEC of a set below a folder (None if the set is missing), and a line for the message about it.

    The line says what was looked for, and where the set comes from. It is only used if the set is missing.
    """
    if member.folder is None:
        spec, why = _find_text_file(folder, member.files)
    else:
        spec, why = _find_image_list(folder, member.files, member.folder)
    purpose = member.group or "validation"
    return spec, f"{member.name} ({purpose}): {why}; it comes from {member.origin}"


def _find_image_list(folder: str, lists: Sequence[str], images_below_root: str) -> tuple[str | None, str]:
    """Find an image list whose images are there, too: the first image of the list must exist.

    The root is ``folder`` itself or its sub-folder ``data``.

    Args:
        folder: the folder of the data.
        lists: possible paths of the list below the root; the first that exists with its images is used.
        images_below_root: the folder of the images, also below the root.

    Returns:
        The SPEC of the list and an empty text; or None and a text that says what is missing.
    """
    why = f"no {' or '.join(lists)}"
    for subfolder in _BELOW:
        root = os.path.join(folder, subfolder) if subfolder else folder
        images_folder = os.path.join(root, images_below_root)
        for name in lists:
            path = os.path.join(root, *name.split("/"))
            if not os.path.isfile(path):
                continue
            # A list without its images is of no use, but the message should say that the list is there.
            first_image = _first_path_in(path)
            if not first_image:
                first_image = "(none)"
            elif os.path.isfile(os.path.join(images_folder, first_image)):
                return f"{path}?root={setting_value(images_folder)}", ""
            missing_image = os.path.join(images_below_root, first_image)
            why = f"{name} is there, and its first image is not: {missing_image}"
    return None, why


def _first_path_in(path: str) -> str | None:
    """Return the path of the first image in an image list; None if the list is empty."""
    with open(path, encoding="utf-8-sig", errors="replace") as file:
        while line := file.readline(_LONGEST_LINE):
            if line.strip():
                first_path, _ = split_line(line.rstrip("\n"))
                return first_path
    return None


def _find_text_file(folder: str, stems: tuple[str, ...]) -> tuple[str | None, str]:
    """Find the text file of a set: the one in the folder whose name fits best.

    Args:
        folder: the folder of the data.
        stems: the names of the set, see :attr:`SuiteMember.files`. A file has one of these names, or one of them and
            the name of a part, before one of the endings of texts.

    Returns:
        The path of the file and an empty text; or None and a text that says what was looked for, or which files fit
        equally well.
    """
    # Group the text files by how well their names fit.
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

    # Take the best one, if it is the only one.
    best_rank = min(paths_by_rank)
    best_paths = paths_by_rank[best_rank]
    if len(best_paths) > 1:
        listed = ", ".join(map(os.path.basename, best_paths))
        return None, f"several files may be it: {listed}"
    return best_paths[0], ""


def _rank_of_name(name: str, stems: tuple[str, ...]) -> int | None:
    """Rank how well a file name fits a set. 0 is best.

    0 is the name of the set, 1 the name with a test part, 2 the name with another part. None means that the file does
    not belong to the set, is for training, or is MNLI's mismatched test part (the matched one is used).

    Args:
        name: the name of a file with one of the endings of texts.
        stems: the names of the set.
    """
    # `Yelp-polarity.test.csv.gz` becomes `yelp_polarity_test`.
    lower = name.lower()
    suffixes = [suffix for suffix in TEXT_SUFFIXES if lower.endswith(suffix)]
    longest_suffix = max(suffixes, key=len)
    stem = re.sub(r"[-. ]+", "_", lower.removesuffix(longest_suffix))
    words = stem.split("_")

    # Parts that are never tested on.
    if "train" in words or "mismatched" in words:
        return None

    # The name of the set alone is best, then a test part, then any other part.
    if stem in stems:
        return 0
    is_part = any(stem.startswith(f"{known}_") for known in stems)
    if not is_part:
        return None
    if "test" in words:
        return 1
    return 2
