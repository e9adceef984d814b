"""Structure-aware mutations of files, drawn at random: a file is taken apart, broken and put together."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

# Numbers at the edges of what programs and formats hold, and things of another type than expected.
NUMBERS = [0, -1, 1, 2, 7, 255, 65536]
NUMBERS += [2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**30, -(2**63)]
NUMBERS += [0.5, -0.0, 1e-320, 1e308, float("nan"), float("inf"), float("-inf")]  # type: ignore[list-item]
TEXTS = ["", " ", "a", "\x00", "\x1b[31mred\x1b[0m", "\u202eright", "../../etc/passwd", "/etc/passwd", "~nosuchuser/x"]
TEXTS += ["http://127.0.0.1:9/x", "hf://a/b", "=1+1", "<script>alert(1)</script>", "a" * 5000, "\ud800", "\u00e9\u4e2d"]
TEXTS += ["1e999", "2020-13-45", "nan", "True", "None", "[1,2", "%s%n", "C:\\x", "os.system"]
VALUES: list[Any] = [*NUMBERS, *TEXTS, None, True, False, [], {}, [[]], [0] * 3, {"a": 1}]


def mutated(data: bytes, form: str, draw: Random, most: int = 3) -> bytes:
    """The bytes of a file with something broken in it.

    Args:
        data: a valid file.
        form: a key of :data:`FORMS`; parts inside are broken in their own form.
        draw: decides everything.
        most: at most so many mutations; with fewer, those are the first ones of the same draw.
    """
    for _ in range(min(draw.randint(1, 3), most)):
        # Whatever a mutation made of the file, it may not have its form any more.
        if draw.randint(0, 5) and form in FORMS:
            with contextlib.suppress(Exception):
                data = FORMS[form](data, draw)
                continue
        data = _bytes(data, draw)
    return data


def _bytes(data: bytes, draw: Random) -> bytes:
    """Bytes changed, cut out, doubled, put in or cut off."""
    start = draw.randint(0, len(data))
    stop = min(len(data), start + draw.choice([1, 2, 4, 8, 64, 4096]))
    piece = data[start:stop]
    match draw.randint(0, 6):
        case 0:
            return data[:start] + bytes(byte ^ 0xFF for byte in piece) + data[stop:]
        case 1:
            return data[:start] + bytes(len(piece)) + data[stop:]
        case 2:
            return data[:start] + data[stop:]
        case 3:
            return data[:start] + piece * 3 + data[stop:]
        case 4:
            return data[:start] + draw.randbytes(draw.randint(0, 16)) + data[stop:]
        case 5:
            return data[:start]
        case _:
            return data + piece


def _broken(value: Any, draw: Random) -> Any:
    """A JSON value with one value of it, at any depth, replaced, left out, doubled or renamed."""
    if isinstance(value, str) and value[:1] in ("{", "[") and draw.random() < 0.5:
        with contextlib.suppress(ValueError):  # JSON inside of JSON, as safetensors' metadata
            return json.dumps(_broken(json.loads(value), draw))
    if not isinstance(value, (dict, list)) or not value or not draw.randint(0, 6):
        return draw.choice(VALUES)
    if isinstance(value, dict):
        key = draw.choice(sorted(value))
        kind = draw.randint(0, 9)
        if kind == 0:
            return {k: v for k, v in value.items() if k != key}
        if kind == 1:
            return {**value, str(draw.choice(TEXTS)): value[key]}
        return {**value, key: _broken(value[key], draw)}
    place = draw.randint(0, len(value) - 1)
    kind = draw.randint(0, 9)
    if kind == 0:
        return value[:place] + value[place + 1 :]
    if kind == 1:
        return [*value, *value[place:]]
    return [*value[:place], _broken(value[place], draw), *value[place + 1 :]]


def _dumped(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _json(data: bytes, draw: Random) -> bytes:
    if not draw.randint(0, 40):
        return b"[" * draw.choice([500, 100_000]) + data
    return _dumped(_broken(json.loads(data), draw))


def _lines(data: bytes, draw: Random) -> bytes:
    """One line of many broken, doubled, or left out; a line of JSON as JSON."""
    lines = data.split(b"\n")
    place = draw.randint(0, len(lines) - 1)
    kind = draw.randint(0, 7)
    if kind == 0:
        return b"\n".join(lines[:place] + lines[place + 1 :])
    if kind == 1:
        return b"\n".join([*lines[:place], lines[place], lines[place], *lines[place:]])
    try:
        lines[place] = _dumped(_broken(json.loads(lines[place]), draw))
    except ValueError:
        lines[place] = _bytes(lines[place], draw)
    return b"\n".join(lines)


def _yaml(data: bytes, draw: Random) -> bytes:
    """One value of a line replaced, also by what only YAML has."""
    lines = data.decode().split("\n")
    place = draw.randint(0, len(lines) - 1)
    key, colon, _ = lines[place].partition(":")
    own = ["!!python/object/apply:os.system [ls]", "&a [*a]", "{a: [b}", "0x10", "1:30", "2020-13-45", "|", "<<: *x"]
    lines[place] = f"{key}{colon or ':'} {draw.choice([*map(str, VALUES), *own])}"
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def _table(delimiter: str) -> Callable[[bytes, Random], bytes]:
    def mutate(data: bytes, draw: Random) -> bytes:
        rows = list(csv.reader(io.StringIO(data.decode()), delimiter=delimiter))
        row = rows[draw.randint(0, len(rows) - 1)]
        place = draw.randint(0, len(row) - 1)
        row[place : place + draw.randint(0, 2)] = [str(draw.choice(VALUES))]
        text = io.StringIO()
        csv.writer(text, delimiter=delimiter).writerows(rows)
        return text.getvalue().encode("utf-8", "surrogatepass")

    return mutate


def _safetensors(data: bytes, draw: Random) -> bytes:
    """The header broken as JSON, under a length that fits; or numbers of the tensors."""
    length = struct.unpack("<Q", data[:8])[0]
    header, tensors = data[8 : 8 + length], data[8 + length :]
    kind = draw.randint(0, 9)
    if kind == 0:
        wrong_length = draw.choice([0, 1, length - 1, length + 1, 2**24 + 1, 2**63])
        return struct.pack("<Q", wrong_length) + data[8:]
    if kind == 1 and tensors:
        place = draw.randint(0, len(tensors) - 1) // 4 * 4
        number = struct.pack("<f", draw.choice([float("nan"), float("inf"), 3e38, 1e-45, -0.0]))
        return data[: 8 + length] + tensors[:place] + number + tensors[place + 4 :]
    header = _dumped(_broken(json.loads(header), draw))
    return struct.pack("<Q", len(header)) + header + tensors


_ARRAY_HEADERS = [("'<i8'", "'|O'"), ("'|u1'", "'|O'"), ("'|u1'", "'<f8'"), ("'|u1'", "'<U99'"), ("(", "(9999999999,")]
_ARRAY_HEADERS += [("(", "(-1,"), (", )", ", 0)"), ("False", "True"), ("(", "(0,"), ("'<i8'", "'<M8[s]'")]


def _parts(archive: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(archive)) as file:
        return {name: file.read(name) for name in file.namelist()}


def _archive(parts: dict[str, bytes], compression: int) -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", compression) as file:
        for name, content in parts.items():
            file.writestr(name, content)
    return whole.getvalue()


def _npz(data: bytes, draw: Random) -> bytes:
    """One array of the archive broken in its header or anywhere, left out, doubled, or compressed."""
    arrays = _parts(data)
    name = draw.choice(sorted(arrays))
    kind = draw.randint(0, 5)
    if kind == 0:
        del arrays[name]
    elif kind == 1:
        arrays[draw.choice(["y.npy", "z.npy", "../x.npy", "classes.npy"])] = arrays[name]
    elif kind == 2:
        arrays[name] = _bytes(arrays[name], draw)
    else:
        array = arrays[name]  # a magic number of eight bytes, the length of the header, the header, numbers
        length = struct.unpack("<H", array[8:10])[0]
        header = array[10 : 10 + length].decode("latin-1")
        numbers = array[10 + length :]
        before, after = draw.choice(_ARRAY_HEADERS)
        header = header.replace(before, after, 1).rstrip() + " " * (-len(header) % 16) + "\n"
        arrays[name] = array[:8] + struct.pack("<H", len(header)) + header.encode() + numbers
    return _archive(arrays, draw.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))


def _zip(data: bytes, draw: Random) -> bytes:
    """One part of the archive broken, left out or named otherwise."""
    parts = _parts(data)
    name = draw.choice(sorted(parts))
    content = _bytes(parts.pop(name), draw)
    if draw.randint(0, 4):
        parts[draw.choice([name, name, name, "../x", "x/data.pkl"])] = content
    return _archive(parts, draw.choice([zipfile.ZIP_STORED] * 3 + [zipfile.ZIP_DEFLATED]))


def _tar(data: bytes, draw: Random) -> bytes:
    """A member with another name, kind, size or content."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(data)) as there, tarfile.open(fileobj=whole, mode="w") as now:
        members = there.getmembers()
        chosen = draw.randint(0, len(members) - 1)
        for place, member in enumerate(members):
            file = there.extractfile(member)
            content = file.read() if file else b""
            if place == chosen:
                kind = draw.randint(0, 4)
                if kind == 0:
                    member.name = draw.choice([t for t in TEXTS if "\x00" not in t and "\ud800" not in t])
                elif kind == 1:
                    member.type = draw.choice([b"1", b"2", b"3", b"5", b"6", b"S", b"x", b"L"])
                    member.linkname = draw.choice(["", "/etc/passwd", member.name])
                elif kind == 2:
                    content = _bytes(content, draw)
                    member.size = len(content)
                elif kind == 3:
                    member.pax_headers = {draw.choice(["size", "path", "GNU.sparse.size"]): "9" * 12}
                else:
                    continue
            now.addfile(member, io.BytesIO(content))
    return whole.getvalue()


def _png(data: bytes, draw: Random) -> bytes:
    """The fields of the header chunk, under a checksum that fits; or a chunk left out or doubled."""
    chunks = []
    place = 8
    while place < len(data):  # length, kind, content, checksum
        length = struct.unpack(">I", data[place : place + 4])[0]
        start = place + 8
        stop = start + length
        chunks.append((data[place + 4 : start], data[start:stop]))
        place = stop + 4
    chosen = draw.randint(0, len(chunks) - 1)
    kind, content = chunks[chosen]
    match draw.randint(0, 4):
        case 0:
            del chunks[chosen]
        case 1:
            chunks.insert(chosen, chunks[chosen])
        case 2:
            text = b"a\0\0" + zlib.compress(bytes(draw.choice([10, 10, 10, 10, 10**7])))
            chunks.insert(1, (draw.choice([b"zTXt", b"iCCP", b"tRNS", b"PLTE", b"gAMA"]), text))
        case 3:
            size = draw.choice([0, 1, 2**31 - 1, 2**16, 13000])
            head = struct.pack(">II", size, draw.choice([1, 8, size])) + draw.randbytes(5)
            chunks[0] = (chunks[0][0], head)
        case _:
            chunks[chosen] = (kind, _bytes(content, draw))
    return data[:8] + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in chunks
    )


def _gzip(data: bytes, draw: Random) -> bytes:
    inside = gzip.decompress(data)
    if not draw.randint(0, 300):
        inside += draw.choice([b"a", b"\n", b"0,"]) * 4_000_000
    return gzip.compress(_lines(inside, draw), mtime=0)


FORMS: dict[str, Callable[[bytes, Random], bytes]] = {
    "json": _json,
    "lines": _lines,
    "yaml": _yaml,
    "csv": _table(","),
    "tsv": _table("\t"),
    "st": _safetensors,
    "npz": _npz,
    "zip": _zip,
    "tar": _tar,
    "png": _png,
    "gz": _gzip,
}
"""How a file is taken apart; files of any other form are broken as bytes."""
