"""Class names and templates of prompts: read from a file (one per line, or a JSON list), or built in by name.

The usual image data sets have two names for every class: one for prompts (``aquarium fish``), and one for files or
folders (``aquarium_fish``). A model's labels are names of the first kind; names of the second kind in data are matched
to them. The lists are files of plain facts in ``classes/``, each with its source; ImageNet's names come from the
libraries that have them.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from hydractl.errors import InputError, UsageError, did_you_mean, near_path
from hydractl.jsonio import Document, parse_json, read_whole, shown

_FOLDER = Path(__file__).parent / "classes"
LABEL_SETS = ("imagenet", "cifar10", "cifar100", "food101", "sun397", "pets", "dtd", "eurosat", "caltech101")
"""The data sets with built-in class names: the nine on which appendix D.3 of the paper evaluates zero-shot models."""

PROMPT_SETS = ("openai-imagenet", "simple-imagenet")
"""Sets of templates that have a name: the 80 that were published with CLIP for ImageNet, and 7 of those."""

_SCHEME = "builtin:"
_PLACE = re.compile(r"\{label\}|\{\}")


class LabelSet(NamedTuple):
    """The classes of one data set, ordered by the numbers of its labels.

    Attributes:
        labels: the class names for prompts.
        published: the names of the same classes in the data set's files or folders.
    """

    labels: tuple[str, ...]
    published: tuple[str, ...]


@lru_cache(maxsize=len(LABEL_SETS))
def label_set(name: str) -> LabelSet:
    """Return the classes of one of the :data:`LABEL_SETS`.

    The classes have labels, which people read (``aquarium fish``), and the names of class folders under which the data
    set is published (``aquarium_fish``). The file of a set has one class per line: ``FOLDER``, or ``FOLDER``, a tab and
    ``LABEL``. Lines that start with ``#`` are comments. ImageNet's classes come from another file.
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
        else:  # the label is the folder's name with spaces between the words
            labels.append(re.sub("[_/]", " ", folder))
    return LabelSet(tuple(labels), tuple(published))


def index_of_published(labels: Sequence[str], names: Iterable[str]) -> Mapping[str, int]:
    """Return the index of each published class name in a model's labels, if these are a built-in list.

    The names of a data set may be published in another form, e.g. ``aquarium_fish`` for ``aquarium fish``. They are
    compared in a folded form: upper and lower case do not matter, nor whether words are separated by spaces, ``_``,
    ``-`` or ``/``.

    Returns:
        The index in ``labels`` for each name that the data set publishes; other names are left out. It is empty if the
        labels are no built-in list.
    """
    built_in = _set_of_labels(tuple(labels))
    if built_in is None:
        return {}
    index_by_folded = {folded_name(published): index for index, published in enumerate(built_in.published)}
    index_by_name = {}
    for name in names:
        folded = folded_name(name)
        if folded in index_by_folded:
            index_by_name[name] = index_by_folded[folded]
    return index_by_name


def _set_of_labels(labels: tuple[str, ...]) -> LabelSet | None:
    """Return the built-in list whose labels are exactly these, in this order; None if there is none."""
    for name in LABEL_SETS:
        if name == "imagenet" and len(labels) != 1000:
            continue  # ImageNet's names come from libraries that take long to import
        built_in = label_set(name)
        if built_in.labels == labels:
            return built_in
    return None


def folded_name(name: str) -> str:
    """Return the form of a name in which names are compared: lower case, with one space between its words."""
    words = re.split(r"[\s_/-]+", name.casefold())
    return " ".join(words)


def class_label_names(metadata: Mapping[bytes, bytes] | None) -> dict[str, list[str]]:
    """Return the class names that the ``datasets`` library stored in a Parquet file, by the column they belong to.

    They are JSON in the metadata of the file's Arrow schema, at ``info.features.COLUMN.names``, and the integers of the
    column index them. The result is empty if another program wrote the file, or if this JSON is damaged.

    Args:
        metadata: the metadata of the schema; None if there are none.
    """
    # The JSON may have any form, since any program may have written the file.
    try:
        description = json.loads((metadata or {})[b"huggingface"])
        features = description["info"]["features"].items()
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError):
        return {}
    names_by_column = {}
    for column, feature in features:
        names = feature.get("names") if isinstance(feature, dict) else None
        if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
            names_by_column[column] = names
    return names_by_column


_PLACEHOLDER = re.compile(r"(label|class) ?[0-9]+")  # matches folded names, e.g. "label 0"
_MOST_SHOWN = 3


def renaming_warning(old_names: Sequence[str], names: Sequence[str], model: str) -> str | None:
    """Return a warning if new names for all classes of a classifier look as if they meant other classes; else None.

    Nothing is odd if the old names say nothing (``LABEL_0``), or if some names change and others keep their index
    (``automobile`` becomes ``car``).

    Args:
        old_names: the present class names.
        names: the new class names, as many as the old ones.
        model: the name of the model in messages.

    Raises:
        InputError: if a class would get the name that another class has now.
    """
    # Differences in case or separators do not count.
    before = [folded_name(name) for name in old_names]
    after = [folded_name(name) for name in names]
    if before == after:
        return None

    # Names that moved: the indices whose new name is the old name of a class at another index.
    old_index_by_name = {name: index for index, name in enumerate(before)}
    moved = []
    for index, name in enumerate(after):
        if name in old_index_by_name and old_index_by_name[name] != index:
            moved.append(index)
    if moved:
        first = moved[0]
        raise InputError(
            f"--labels gives {len(moved)} of the {len(old_names)} classes of {model} the names of others: "
            f"{names[first]!r} is its class {old_index_by_name[after[first]]}, and would be class {first}",
            hint="leave --labels out: data that name their classes are matched by name; where the data mean another "
            "class by a name, map it with --label-map FILE of eval",
        )

    # If some names stay the same, the classes are the same, and only some of their names differ.
    some_stay = not old_index_by_name.keys().isdisjoint(after)
    if some_stay:
        return None

    # Placeholders such as LABEL_0 may get any names.
    if all(_PLACEHOLDER.fullmatch(name) for name in before):
        return None

    # All names are new, and the old ones meant something.
    changes = [f"{old} is now {new}" for old, new in zip(old_names, names, strict=True)]
    listed = ", ".join(changes[:_MOST_SHOWN])
    if len(changes) > _MOST_SHOWN:
        listed += ", ..."
    return (
        f"{model}: --labels gives all {len(old_names)} classes other names ({listed}), and "
        "nothing tells whether they are the same things: leave it out if they are not"
    )


def read_labels(labels: str | Document, option: str = "--labels") -> list[str]:
    """Return the class names that an option asks for, in the order of the classes.

    =============================  ==================================================================================
    ``labels``                     the names
    =============================  ==================================================================================
    a list of a Python program     its entries
    a name of :data:`LABEL_SETS`   that built-in list; ``builtin:NAME`` if a file has the same name
    a folder of training images    its sub-folders, in the order in which training scripts number them
    a ``.json`` file               its list of strings
    any other file                 its lines, in UTF-8, without blank ones and without spaces around names
    =============================  ==================================================================================

    Args:
        labels: what the option was set to.
        option: the name of the option, for messages.

    Raises:
        InputError: if a file cannot be read, has no names, or has a name twice.
        UsageError: if a name is both a list and a file, or no list has the name after ``builtin:``.
    """
    if isinstance(labels, Document) and labels.held is not None:  # the list of a Python program
        held_names = _listed_names(labels.held, option)
        return _checked_names(held_names, option, "class name")
    text = str(labels)
    where = f"{option} {text}"
    if _is_built_in(text, LABEL_SETS, where):
        built_in = label_set(text.removeprefix(_SCHEME))
        return list(built_in.labels)
    path = Path(os.path.expanduser(text))
    if path.is_dir():
        return _class_folders(path, where)

    # A text that is no file and has no ending was probably meant to be the name of a list.
    looks_like_name = not path.suffix
    if looks_like_name and not os.path.lexists(path):
        lists = f"lists that are built in: {', '.join(LABEL_SETS)}"
        message = f"{where}: neither a file nor a list of class names{did_you_mean(text, LABEL_SETS)}"
        raise InputError(message, hint=near_path(path) or lists)
    return _checked_names(_lines_of(text, where), where, "class name")


def _class_folders(folder: Path, where: str) -> list[str]:
    """Return the names of the class folders in a folder, sorted.

    Torchvision sorts folders as texts: ``c10`` before ``c2``. timm ignores case and sorts numbers in the names by their
    value: ``c2`` before ``c10``.

    Raises:
        InputError: if there are no class folders, or torchvision and timm would number them differently.
    """
    # Every folder that is not hidden is a class.
    names = []
    try:
        for entry in os.scandir(folder):
            if entry.is_dir() and not entry.name.startswith("."):
                names.append(entry.name)
    except OSError as error:
        raise InputError(f"{where}: cannot read the folder: {error.strerror}") from error
    if not names:
        raise InputError(f"{where}: no folders of classes in the folder")

    # The index of a class is its place in the sorted list. If the two ways of sorting disagree, nothing tells which one
    # the model was trained with.
    sorted_by_torchvision = sorted(names)
    sorted_by_timm = sorted(sorted_by_torchvision, key=_key_with_numbers)
    for index, name in enumerate(sorted_by_torchvision):
        name_by_timm = sorted_by_timm[index]
        if name != name_by_timm:
            raise InputError(
                f"{where}: class {index} is {name} where folders are sorted as texts (torchvision), and "
                f"{name_by_timm} where case does not count and numbers do (timm)",
                hint="write the names to a file, one a line, in the order of the classes, and give that",
            )
    return sorted_by_torchvision


def _key_with_numbers(name: str) -> list[Any]:
    """Return a sort key for texts that ignores case and compares numbers by value: ``c2`` comes before ``c10``."""
    parts: list[Any] = re.split(r"([0-9]+)", name.lower())
    parts[1::2] = map(int, parts[1::2])  # texts and numbers take turns, and the first is a text
    return parts


def read_words(path: str) -> list[str]:
    """Return the different words in a file, in order of their first occurrence.

    Args:
        path: the file of ``--negative-words``, with a word on each line or a JSON list.

    Raises:
        InputError: if the file cannot be read or has no words.
    """
    where = f"--negative-words {path}"
    words = _lines_of(path, where)
    if not words or not all(words):
        raise InputError(f"{where}: no words in the file, or an empty one")
    return list(dict.fromkeys(words))


def read_prompts(texts: Sequence[str], option: str = "--prompt") -> list[str]:
    """Return the templates of prompts that an option asks for, such as ``a photo of a {label}``, in order.

    Args:
        texts: each is a template (with ``{label}`` or ``{}`` in place of the class name), or the name of one of the
            :data:`PROMPT_SETS`, or a file with a template on each line or a JSON list of templates. Any other text is
            returned as it is; the code that fills in templates will refuse it.
        option: the name of the option, for messages.

    Raises:
        InputError: if a file cannot be read or has no templates.
        UsageError: if a name is both a set and a file, or no set has the name after ``builtin:``.
    """
    prompts: list[str] = []
    for text in texts:
        where = f"{option} {text}"
        # A text with a place for the name is a template, even if a file has the same name.
        if _PLACE.search(text):
            prompts.append(text)
        elif _is_built_in(text, PROMPT_SETS, where):
            from hydractl.families.imagenet import templates

            prompts += templates(text.removeprefix(_SCHEME))
        elif os.path.isfile(os.path.expanduser(text)):
            prompts += _checked_names(_lines_of(text, where), where, "template")
        else:
            prompts.append(text)
    return prompts


def _is_built_in(text: str, known: Sequence[str], where: str) -> bool:
    """Return whether a text names one of the built-in lists, with or without ``builtin:``.

    Raises:
        UsageError: if no list has the name after ``builtin:``, or if the name is also that of a file.
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


def _lines_of(path: str, where: str) -> list[str]:
    """Return the lines of a text file that are not blank, without spaces around them, or the entries of a JSON list.

    Args:
        path: the file; ``.json`` at its end means a JSON list.
        where: the name of the file in messages.

    Raises:
        InputError: if the file cannot be read.
    """
    try:
        content = read_whole(os.path.expanduser(path))
    except OSError as error:
        raise InputError(f"{where}: cannot read the file: {error.strerror}", hint=near_path(path)) from error
    if path.lower().endswith(".json"):
        return _listed_names(parse_json(content, where), where)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not UTF-8 text (byte {error.start})", hint="save the file as UTF-8") from error
    lines = [line.strip() for line in text.split("\n")]
    return [line for line in lines if line]


def _checked_names(names: list[str], where: str, kind: str) -> list[str]:
    """Return names unchanged, after checking that there are some, that none is empty and none occurs twice.

    Args:
        names: class names, or templates.
        where: the name of the file in messages.
        kind: how messages call one of the names.

    Raises:
        InputError: if one of these conditions is not met.
    """
    if not names:
        raise InputError(f"{where}: no {kind}s in the file")
    if not all(names):
        raise InputError(f"{where}: an empty {kind}")
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        problems = [shown(name) for name in sorted(repeated)]
        raise InputError(f"{where}: {kind}s given more than once", problems=problems)
    return names


def _listed_names(document: object, where: str) -> list[str]:
    """Return the names in a JSON document, which must be a list of strings, without spaces around them."""
    error = InputError(f"{where}: not a JSON list of names but {shown(document)}")
    if not isinstance(document, list):
        raise error
    if not all(isinstance(name, str) for name in document):
        raise error
    return [name.strip() for name in document]
