"""Class names and templates of prompts: from a file (one a line, or a JSON list), or built in by name.

Each of the usual image data sets has two names for every class: the one its prompts say (``aquarium fish``), and the
one its files or folders have (``aquarium_fish``). A model has the first kind as its labels; data with the second kind
are matched to them. The lists are files of plain facts in ``classes/``, each with its source; ImageNet's come from the
libraries that have them.
"""

from __future__ import annotations

import difflib
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from hydractl.errors import InputError, UsageError
from hydractl.jsonio import HeldDocument, parse_json, shown

_FOLDER = Path(__file__).parent / "classes"
LABEL_SETS = ("imagenet", "cifar10", "cifar100", "food101", "sun397", "pets", "dtd", "eurosat", "caltech101")
"""The sets whose class names are built in (appendix D.3 of the paper evaluates zero-shot models on these nine)."""

PROMPT_SETS = ("openai-imagenet", "simple-imagenet")
"""Sets of templates that can be named: the 80 that CLIP was published with for ImageNet, and 7 of them."""

_SCHEME = "builtin:"
_PLACE = re.compile(r"\{label\}|\{\}")


class LabelSet(NamedTuple):
    """The classes of one data set, in the order of the numbers of its own labels.

    Attributes:
        labels: what prompts say.
        published: what its files or folders call the same classes.
    """

    labels: tuple[str, ...]
    published: tuple[str, ...]


@lru_cache(maxsize=len(LABEL_SETS))
def label_set(name: str) -> LabelSet:
    """Return the classes of one of :data:`LABEL_SETS`.

    Its file has a line for each class: ``FOLDER``, or ``FOLDER``, a tab and ``LABEL``; lines with ``#`` are comments.
    """
    if name == "imagenet":
        from hydractl.families.imagenet import class_names, synsets

        return LabelSet(class_names(), synsets())
    labels = []
    published = []
    table = (_FOLDER / f"{name}.tsv").read_text(encoding="utf-8")
    for line in table.splitlines():
        if line.startswith("#"):
            continue
        folder, tab, label = line.partition("\t")
        published.append(folder)
        if tab:
            labels.append(label)
        else:  # a line of one name: prompts have spaces between its words
            labels.append(re.sub("[_/]", " ", folder))
    return LabelSet(tuple(labels), tuple(published))


def place_of_published(labels: Sequence[str], names: Iterable[str]) -> Mapping[str, int]:
    """Find the classes of a data set among the labels of a model, if those are one of the built-in lists.

    Returns:
        By name in the data, the position in ``labels``; a name that the data set does not publish is left out. Case,
        and whether words are separated by spaces, ``_``, ``-`` or ``/``, does not matter.
    """
    built_in = _set_of_labels(tuple(labels))
    if built_in is None:
        return {}
    place_by_folded = {}
    for place, published in enumerate(built_in.published):
        place_by_folded[folded_name(published)] = place
    place_by_name = {}
    for name in names:
        folded = folded_name(name)
        if folded in place_by_folded:
            place_by_name[name] = place_by_folded[folded]
    return place_by_name


def _set_of_labels(labels: tuple[str, ...]) -> LabelSet | None:
    """Return the built-in list whose labels are exactly these; None where there is none."""
    for name in LABEL_SETS:
        if name == "imagenet" and len(labels) != 1000:
            continue  # its names come from libraries that take long to import
        built_in = label_set(name)
        if built_in.labels == labels:
            return built_in
    return None


def folded_name(name: str) -> str:
    """Return a name in the form in which names are compared: without case, one space between its words."""
    words = re.split(r"[\s_/-]+", name.casefold())
    return " ".join(words)


_PLACEHOLDER = re.compile(r"(label|class) ?[0-9]+")  # once folded
_MOST_SHOWN = 3


def renaming_doubt(old_names: Sequence[str], names: Sequence[str], model: str) -> str | None:
    """Return a warning about new names of the classes of a classifier; None where nothing is odd about them.

    Names such as ``LABEL_0`` say nothing, and may become any others. A few names may become others while the rest keep
    their places, as ``automobile`` becomes ``car``.

    Args:
        old_names: those that it has.
        names: as many new ones.
        model: what messages call it.

    Raises:
        InputError: where a name that it has would become that of another class.
    """
    before = [folded_name(name) for name in old_names]
    after = [folded_name(name) for name in names]
    if before == after:
        return None

    # The places whose new name was that of a class at another place.
    place_before = {name: place for place, name in enumerate(before)}
    moved = []
    for place, name in enumerate(after):
        if name in place_before and place_before[name] != place:
            moved.append(place)
    if moved:
        first = moved[0]
        raise InputError(
            f"--labels gives {len(moved)} of the {len(old_names)} classes of {model} the names of others: "
            f"{names[first]!r} is its class {place_before[after[first]]}, and would be class {first}",
            hint="leave --labels out: data that name their classes are matched by name; where the data mean another "
            "class by a name, map it with --label-map FILE of eval",
        )

    # A name that stays tells that the classes are the same ones.
    some_stay = not place_before.keys().isdisjoint(after)
    if some_stay:
        return None
    if all(_PLACEHOLDER.fullmatch(name) for name in before):
        return None
    changes = []
    for old, new in zip(old_names, names, strict=True):
        changes.append(f"{old} is now {new}")
    listed = ", ".join(changes[:_MOST_SHOWN])
    if len(changes) > _MOST_SHOWN:
        listed += ", ..."
    return (
        f"{model}: --labels gives all {len(old_names)} classes other names ({listed}), and "
        "nothing tells whether they are the same things: leave it out if they are not"
    )


def read_labels(text: str, option: str = "--labels") -> list[str]:
    """Return the class names that an option asks for.

    Args:
        text: the name of one of :data:`LABEL_SETS`, or a file: a ``.json`` file with a list of strings, or a text file
            (UTF-8) with a name on each line, where blank lines and spaces around names do not count. Where both are
            there, the list is meant by ``builtin:NAME`` and the file by ``./NAME``. Or a folder of training images,
            whose folders are the classes, in the order in which training scripts number them. Or a list that a Python
            program holds.
        option: for messages.

    Raises:
        InputError: for a file that cannot be read, has no names, or has one twice.
        UsageError: for a name that is both, or ``builtin:`` and none of the lists.
    """
    if isinstance(text, HeldDocument):
        held_names = _listed_names(text.value, option)
        return _checked_names(held_names, option, "class name", "class names")
    where = f"{option} {text}"
    if _is_built_in(text, LABEL_SETS, where):
        built_in = label_set(text.removeprefix(_SCHEME))
        return list(built_in.labels)
    path = Path(os.path.expanduser(text))
    if path.is_dir():
        return _class_folders(path, where)
    looks_like_name = not path.suffix
    if looks_like_name and not os.path.lexists(path):
        hint = f"lists that are built in: {', '.join(LABEL_SETS)}"
        near = difflib.get_close_matches(text, LABEL_SETS, n=1)
        if near:
            hint = f"did you mean {near[0]}? {hint}"
        raise InputError(f"{where}: neither a file nor a list of class names", hint=hint)
    return _read_lines(text, where, "class name", "class names")


def _class_folders(folder: Path, where: str) -> list[str]:
    """Return the names of class folders, sorted.

    Raises:
        InputError: where there are none, or torchvision and timm would number them differently: torchvision sorts them
            as texts, timm without case and by the numbers in them.
    """
    names = []
    try:
        for entry in os.scandir(folder):
            if entry.is_dir() and not entry.name.startswith("."):
                names.append(entry.name)
    except OSError as error:
        raise InputError(f"{where}: cannot read the folder: {error.strerror}") from error
    if not names:
        raise InputError(f"{where}: no folders of classes in the folder")
    sorted_by_torchvision = sorted(names)
    sorted_by_timm = sorted(sorted_by_torchvision, key=_key_with_numbers)
    for place, name in enumerate(sorted_by_torchvision):
        name_by_timm = sorted_by_timm[place]
        if name != name_by_timm:
            raise InputError(
                f"{where}: class {place} is {name} where folders are sorted as texts (torchvision), and "
                f"{name_by_timm} where case does not count and numbers do (timm)",
                hint="write the names to a file, one a line, in the order of the classes, and give that",
            )
    return sorted_by_torchvision


def _key_with_numbers(name: str) -> list[tuple[bool, int | str]]:
    """Return a key that sorts texts without case and by the numbers in them: ``c2`` before ``c10``."""
    key: list[tuple[bool, int | str]] = []
    for part in re.split(r"([0-9]+)", name.lower()):
        if part.isdigit():
            key.append((True, int(part)))
        else:
            key.append((False, part))
    return key


def read_words(path: str, option: str) -> list[str]:
    """Return the words in a file, one on each line or a JSON list, each once, in their order.

    Args:
        path: of the file.
        option: for messages.

    Raises:
        InputError: for a file that cannot be read or has no words.
    """
    where = f"{option} {path}"
    words = _lines_of(path, where)
    if not words or not all(words):
        raise InputError(f"{where}: no words in the file, or an empty one")
    return list(dict.fromkeys(words))


def read_prompts(texts: Sequence[str], option: str = "--prompt") -> list[str]:
    """Return the templates that an option asks for, in the order given.

    Args:
        texts: each a template (with ``{label}`` or ``{}`` where the name goes), the name of one of
            :data:`PROMPT_SETS`, or a file with a template on each line or a JSON list of them. A text that is none of
            these stays as it is: what makes prompts refuses it.
        option: for messages.

    Raises:
        InputError: for a file that cannot be read or has no templates.
        UsageError: for a name that is both a set and a file, or ``builtin:`` and none of the sets.
    """
    prompts: list[str] = []
    for text in texts:
        where = f"{option} {text}"
        if _PLACE.search(text):
            prompts.append(text)
        elif _is_built_in(text, PROMPT_SETS, where):
            from hydractl.families.imagenet import templates

            prompts += templates(text.removeprefix(_SCHEME))
        elif os.path.isfile(os.path.expanduser(text)):
            prompts += _read_lines(text, where, "template", "templates")
        else:
            prompts.append(text)
    return prompts


def _is_built_in(text: str, known: Sequence[str], where: str) -> bool:
    """Return whether a text names one of the built-in lists, with ``builtin:`` or without.

    Raises:
        UsageError: for ``builtin:`` and none of the lists, and for a name that is also that of a file.
    """
    if text.startswith(_SCHEME):
        if text.removeprefix(_SCHEME) not in known:
            raise UsageError(f"{where}: nothing of that name is built in", hint=f"there are: {', '.join(known)}")
        return True
    if text not in known:
        return False
    if os.path.lexists(text):
        raise UsageError(
            f"{where} is built in, and a file here has the same name", hint=f"write {_SCHEME}{text}, or ./{text}"
        )
    return True


def _read_lines(path: str, where: str, singular: str, plural: str) -> list[str]:
    """Return the names in a file: the lines of a text, or a JSON list.

    Args:
        path: of the file.
        where: what messages call it.
        singular, plural: what messages call the names.

    Raises:
        InputError: for a file that cannot be read, has no names, or has one twice.
    """
    names = _lines_of(path, where)
    return _checked_names(names, where, singular, plural)


def _lines_of(path: str, where: str) -> list[str]:
    """Return the lines of a text, or the entries of a JSON list.

    Raises:
        InputError: for a file that cannot be read.
    """
    try:
        content = Path(os.path.expanduser(path)).read_bytes()
    except OSError as error:
        raise InputError(f"{where}: cannot read the file: {error.strerror}") from error
    if path.lower().endswith(".json"):
        return _listed_names(parse_json(content, where), where)
    return _text_names(content, where)


def _checked_names(names: list[str], where: str, singular: str, plural: str) -> list[str]:
    """Return the names, after checking that there are some, that none is empty, and that none is there twice.

    Args:
        names: of classes, or templates.
        where: what messages call the file.
        singular, plural: what messages call the names.

    Raises:
        InputError: they are not so.
    """
    if not names:
        raise InputError(f"{where}: no {plural} in the file")
    if not all(names):
        raise InputError(f"{where}: an empty {singular}")
    twice = []
    for name, count in Counter(names).items():
        if count > 1:
            twice.append(name)
    if twice:
        problems = [shown(name) for name in sorted(twice)]
        raise InputError(f"{where}: {plural} given more than once", problems=problems)
    return names


def _listed_names(document: object, where: str) -> list[str]:
    """Return the names in a JSON document, which is a list of them, without the spaces around them."""
    error = InputError(f"{where}: not a JSON list of names but {shown(document)}")
    if not isinstance(document, list):
        raise error
    if not all(isinstance(name, str) for name in document):
        raise error
    return [name.strip() for name in document]


def _text_names(content: bytes, where: str) -> list[str]:
    """Return the lines of a text, without the blank ones."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not UTF-8 text (byte {error.start})", hint="save the file as UTF-8") from error
    lines = [line.strip() for line in text.split("\n")]
    return [line for line in lines if line]
