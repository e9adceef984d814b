"""Class names of the usual image data sets, by the name of the set (``--labels cifar100``).

Each set has two names for every class: the one its prompts say (``aquarium fish``), and the one its files or folders
have (``aquarium_fish``). A model has the first kind as its labels; data with the second kind are matched to them.
The lists are files of plain facts in ``classes/``, each with its source; ImageNet's come from the libraries that have
them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from hydractl.errors import UsageError

_FOLDER = Path(__file__).parent / "classes"
_SIZES = {
    "imagenet": 1000,
    "cifar10": 10,
    "cifar100": 100,
    "food101": 101,
    "sun397": 397,
    "pets": 37,
    "dtd": 47,
    "eurosat": 10,
    "caltech101": 102,
}
LABEL_SETS = tuple(_SIZES)
"""The sets that can be named (paper D.3 evaluates zero-shot models on these nine)."""

SCHEME = "builtin:"
"""Optional prefix of a name, for when there is a file of the same name."""


@dataclass(frozen=True)
class LabelSet:
    """The classes of one data set.

    Attributes:
        labels: what prompts say, in the order of the numbers of the data set's own labels.
        published: what its files or folders call the same classes, in the same order.
    """

    labels: tuple[str, ...]
    published: tuple[str, ...]


def label_set(name: str) -> LabelSet:
    """The classes of a data set by its name, with or without ``builtin:``.

    Raises:
        UsageError: for a name that is none of :data:`LABEL_SETS`.
    """
    bare = name.removeprefix(SCHEME)
    if bare not in _SIZES:
        near = difflib.get_close_matches(bare, LABEL_SETS, n=1)
        raise UsageError(
            f"there is no list of class names {bare!r}" + (f"; did you mean {near[0]}?" if near else ""),
            hint=f"there are: {', '.join(LABEL_SETS)}",
        )
    return _read(bare)


def place_of_published(labels: Sequence[str], names: Iterable[str]) -> Mapping[str, int]:
    """Positions of the classes of a data set among the labels of a model, if those are one of the built-in lists.

    Args:
        labels: of the model.
        names: of classes in the data.

    Returns:
        By name in the data, the position in ``labels``; a name that the data set does not publish is left out. Case,
        and whether words are parted by spaces, ``_``, ``-`` or ``/``, does not matter.
    """
    own = tuple(labels)
    for bare, size in _SIZES.items():
        if size == len(own) and (found := _read(bare)).labels == own:
            places = {_folded(name): place for place, name in enumerate(found.published)}
            return {name: places[_folded(name)] for name in names if _folded(name) in places}
    return {}


@lru_cache(maxsize=len(_SIZES))
def _read(name: str) -> LabelSet:
    if name == "imagenet":
        from hydractl.families.imagenet import class_names, synsets

        return LabelSet(class_names(), synsets())
    lines = (_FOLDER / f"{name}.tsv").read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines if not line.startswith("#")]
    # A line of one name: words are read with spaces between them.
    return LabelSet(tuple(r[1] if r[1:] else re.sub("[_/]", " ", r[0]) for r in rows), tuple(r[0] for r in rows))


def _folded(name: str) -> str:
    return " ".join(re.split(r"[\s_/-]+", name.casefold()))
