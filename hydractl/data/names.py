"""Class names in a file: one a line, or a JSON list."""

from __future__ import annotations

from pathlib import Path

from hydractl.errors import InputError
from hydractl.heads import parse_json, shown


def read_names(path: str, option: str) -> list[str]:
    """The class names of a file, in its order.

    Args:
        path: a ``.json`` file with a list of strings, or a text file (UTF-8) with a name on each line; blank lines and
            spaces around names do not count.
        option: what named the file, for messages.

    Raises:
        InputError: for a file that cannot be read, has no names, or has one twice.
    """
    where = f"{option} {path}"
    try:
        content = Path(path).expanduser().read_bytes()
    except OSError as error:
        raise InputError(f"{where}: cannot read the file: {error.strerror}") from error
    if path.lower().endswith(".json"):
        document = parse_json(content, where)
        if not isinstance(document, list) or not all(isinstance(name, str) for name in document):
            raise InputError(f"{where}: not a JSON list of names but {shown(document)}")
        names = [name.strip() for name in document]
    else:
        try:
            names = [line.strip() for line in content.decode("utf-8-sig").split("\n") if line.strip()]
        except UnicodeDecodeError as error:
            raise InputError(f"{where}: not UTF-8 text (byte {error.start})", hint="save the file as UTF-8") from error
    if not names or not all(names):
        raise InputError(f"{where}: {'an empty class name' if names else 'no class names in the file'}")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"{where}: class names given more than once", problems=[shown(name) for name in twice])
    return names
