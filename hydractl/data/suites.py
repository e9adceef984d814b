"""``--ood-suite``: from the name of a benchmark and a folder to the named OOD sets that are to be opened.

Nothing is downloaded: every set that is missing is named at once, with where it was looked for and where it comes from.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from hydractl.data.imagelist import split_line
from hydractl.data.spec import TEXT_SUFFIXES
from hydractl.data.suite_tables import SUITES, Listed, Member, Named, Suite
from hydractl.errors import InputError, UsageError
from hydractl.settings.expressions import OodSet, SuiteChoice

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
    folder = _folder(root)
    wanted = _wanted(choice, suite)
    sets, problems, gone = [], [], []
    for member in wanted:
        spec, problem = _look(folder, member)
        if spec is not None:
            sets.append(OodSet(member.name, member.group, spec))
        else:
            gone.append(member)
            problems.append(problem)
    notes = [suite.note] if suite.note else []
    gone, problems = _stand_in(suite, choice, folder, sets, gone, problems, notes)
    if gone and not (choice.partial and sets):
        way_out = f"--ood-suite {choice.name}:partial goes on with those that are there"
        if not sets:
            what = "benchmark_imglist and images_..." if suite.samples == "images" else "the files of texts"
            way_out = f"is --ood-root the folder that holds {what}?"
        raise InputError(
            f"--ood-suite {choice.name}: {len(gone)} of {len(wanted)} sets are not under --ood-root {root}",
            hint=f"nothing is downloaded; {way_out}",
            problems=problems,
        )
    if gone:
        notes.append(f"without {', '.join(member.name for member in gone)}, which {_is(gone)} not there")
    order = [member.name for member in suite.members]
    sets.sort(key=lambda one: order.index(one.name))
    twice = [one.name for one in sets if one.name in set(taken)]
    if twice:
        raise UsageError(
            f"--ood-suite {choice.name} and --ood both have {', '.join(twice)}", hint="give the --ood set another name"
        )
    return FoundSuite(choice.name, sets, [member.name for member in gone], notes)


def validation_set(name: str, root: str) -> OodSet:
    """The set of a suite that is for validation: circuits and thresholds are chosen on it, and it is never tested.

    Raises:
        InputError: where it is missing.
    """
    folder = _folder(root)
    member = next(member for member in SUITES[name].members if member.group is None)
    spec, problem = _look(folder, member)
    if spec is None:
        raise InputError(f"--ood-suite {name}: the set for validation is missing", problems=[problem])
    return OodSet(member.name, None, spec)


def id_list(name: str, split: str, root: str) -> tuple[str, str]:
    """OpenOOD's own list of in-distribution images, which is not the full test set.

    Args:
        name: a suite of images.
        split: ``test``, on which OpenOOD gives accuracy and OOD metrics, or ``val``.
        root: the folder of the data.

    Returns:
        The SPEC, and a sentence that says what the list is.

    Raises:
        InputError: where the list or its images are missing.
    """
    suite = SUITES[name]
    listed = suite.id_lists[split]
    spec, tried = _listed(_folder(root), listed)
    if spec is None:
        raise InputError(
            f"--ood-suite {name}: OpenOOD's ID list {os.path.basename(listed.lists[0])} is missing", problems=[tried]
        )
    return spec, suite.id_sentences[split]


def id_list_of(spec: str) -> str | None:
    """A sentence that describes an ID data set whose SPEC names one of OpenOOD's ID lists; None for any other."""
    path = spec.partition("?")[0].replace(os.sep, "/")
    for suite in SUITES.values():
        for split, listed in suite.id_lists.items():
            if path.endswith(listed.lists):
                return suite.id_sentences[split]
    return None


def _is(members: list[Member]) -> str:
    return "is" if len(members) == 1 else "are"


def _folder(root: str) -> str:
    folder = os.path.expanduser(root)
    if not os.path.isdir(folder):
        raise InputError(f"--ood-root {root}: no such folder")
    return folder


def _wanted(choice: SuiteChoice, suite: Suite) -> list[Member]:
    """The sets asked for: all that are tested, or those named.

    Raises:
        UsageError: listing the names that cannot be tested.
    """
    tested = [member for member in suite.members if member.group is not None]
    if not choice.sets:
        return [member for member in tested if not member.stands_in]
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


def _stand_in(
    suite: Suite,
    choice: SuiteChoice,
    folder: str,
    sets: list[OodSet],
    gone: list[Member],
    problems: list[str],
    notes: list[str],
) -> tuple[list[Member], list[str]]:
    """Put stand-ins in place of missing sets of their group; returns what is still missing, and why."""
    for member in suite.members:
        replaced = [one for one in gone if one.group == member.group]
        if not member.stands_in or not replaced or choice.sets:
            continue
        spec, _ = _look(folder, member)
        if spec is not None:
            sets.append(OodSet(member.name, member.group, spec))
            names = " and ".join(one.name for one in replaced)
            notes.append(f"{member.name} stands in for {names}, which {_is(replaced)} not there ({member.group})")
            kept = [(one, why) for one, why in zip(gone, problems, strict=True) if one not in replaced]
            gone, problems = [one for one, _ in kept], [why for _, why in kept]
    return gone, problems


def _look(folder: str, member: Member) -> tuple[str | None, str]:
    """The SPEC of a set; without one, a line that says what was looked for and where it comes from."""
    if isinstance(member.files, Listed):
        spec, why = _listed(folder, member.files)
    else:
        spec, why = _named(folder, member.files)
    return spec, f"{member.name} ({member.group or 'validation'}): {why}; it comes from {member.origin}"


def _listed(folder: str, listed: Listed) -> tuple[str | None, str]:
    """The SPEC of an image list whose first image is there; without one, what was looked for."""
    why = f"no {' or '.join(listed.lists)}"
    for below in _BELOW:
        base = os.path.join(folder, below) if below else folder
        images = os.path.join(base, listed.folder)
        for name in listed.lists:
            path = os.path.join(base, *name.split("/"))
            if not os.path.isfile(path):
                continue
            first = _first_path(path)
            if first is not None and os.path.isfile(os.path.join(images, first)):
                return f"{path}?root={_quoted(images)}", ""
            why = f"{name} is there, and its first image is not: {os.path.join(listed.folder, first or '(none)')}"
    return None, why


def _first_path(path: str) -> str | None:
    """The path in the first line of an image list; None for an empty one."""
    with open(path, encoding="utf-8-sig", errors="replace") as file:
        while line := file.readline(_LONGEST_LINE):
            if line.strip():
                return split_line(line.rstrip("\n"))[0]
    return None


def _quoted(value: str) -> str:
    """A path as the value of a SPEC's query."""
    return value.replace("%", "%25").replace("&", "%26")


def _named(folder: str, named: Named) -> tuple[str | None, str]:
    """The SPEC of the one text file of that name; without one, what was looked for."""
    found: dict[int, list[str]] = {}
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if name.lower().endswith(TEXT_SUFFIXES) and os.path.isfile(path):
            rank = _rank(_stem(name), named.stems)
            if rank is not None:
                found.setdefault(rank, []).append(path)
    if not found:
        endings = "|".join(sorted({suffix.removesuffix(".gz") for suffix in TEXT_SUFFIXES}))
        return None, f"no file {_names(named.stems)} ({endings})"
    best = found[min(found)]
    if len(best) > 1:
        return None, f"several files may be it: {', '.join(map(os.path.basename, best))}"
    return best[0], ""


def _names(stems: Iterable[str]) -> str:
    return " or ".join(f"{stem}.* or {stem}_*" for stem in stems)


def _stem(name: str) -> str:
    lower = name.lower()
    suffix = max((suffix for suffix in TEXT_SUFFIXES if lower.endswith(suffix)), key=len)
    return re.sub(r"[-. ]+", "_", lower.removesuffix(suffix))


def _rank(stem: str, stems: tuple[str, ...]) -> int | None:
    """Rank of a file name, 0 is best: the name itself, a test part, another part; None for another set's name.

    Parts for training are never taken; of MNLI's two test parts the matched one is.
    """
    words = stem.split("_")
    if "train" in words or "mismatched" in words:
        return None
    if stem in stems:
        return 0
    if not stem.startswith(tuple(f"{own}_" for own in stems)):
        return None
    return 1 if "test" in words else 2
