"""Which samples a model has seen: short fingerprints that travel with circuits, masks and checkpoints.

Scores of heads, a circuit, a temperature or a fine-tuning fits itself to the samples it is given. Measured on these, it
looks better than it is, so ``eval`` refuses them as test data. What decides is the content of a sample, not the name of
its file.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hydractl.errors import InputError


class Fingerprinted(Protocol):
    """A data set whose samples can be fingerprinted."""

    def __len__(self) -> int: ...

    def fingerprint(self) -> str:
        """Return the fingerprint of the whole."""
        ...

    def sample_fingerprints(self) -> Sequence[str]:
        """Return the fingerprint of each sample, in hex."""
        ...


_BYTES, _DIGITS = 6, 12
"""Bytes and hex digits kept of each sample's SHA-256: two different samples among a million times 50,000 meet with a
chance of 0.0002."""

MOST = 65_536
"""Fingerprints kept of one data set: those of the lowest value, so that a larger set is represented by a sample of it
that does not depend on its order. Of one sample in twenty of the test data, fifty are met by such a part."""

Entry = Mapping[str, Any]
"""``by`` (the verb that saw the samples), ``as`` (what for), ``data`` (fingerprint of the data set), ``n`` (its
samples that were used) and ``hashes`` (base64 of the kept fingerprints, ascending, 6 bytes each)."""


def entry(by: str, role: str, dataset: Fingerprinted, used: Sequence[int] | None = None) -> dict[str, Any]:
    """Return the record of one data set.

    Args:
        by: the verb, or the part of it, that saw the samples.
        role: what for: ``id``, ``ood``, ``train``, ``val``, ``val_ood`` or ``calibration``.
        dataset: the samples.
        used: the indices of those that were used; None: all.
    """
    digests = dataset.sample_fingerprints()
    digests = digests if used is None else [digests[index] for index in used]
    hashes = sorted({digest[:_DIGITS] for digest in digests})[:MOST]
    return {
        "by": by,
        "as": role,
        "data": dataset.fingerprint(),
        "n": len(digests),
        "hashes": base64.b64encode(bytes.fromhex("".join(hashes))).decode("ascii"),
    }


def merged(*lists: Iterable[Entry]) -> list[Entry]:
    """Merge entries: the same samples once for each use, in the order of their first appearance."""
    uses: dict[tuple[str, ...], Entry] = {}
    for use in (use for entries in lists for use in entries):
        uses.setdefault((use["by"], use["as"], use["data"], use["hashes"]), use)
    return list(uses.values())


def marked(entries: Iterable[Entry], dataset: Fingerprinted) -> npt.NDArray[np.bool_]:
    """Return which samples of a data set are among those seen, bool ``[N]``.

    Of sets larger than :data:`MOST` only a part is known, so a sample that is not marked may have been seen all the
    same; a leak of more than a few samples shows.
    """
    seen: set[str] = set()
    for use in entries:
        digits = base64.b64decode(use["hashes"]).hex()
        seen.update(digits[i : i + _DIGITS] for i in range(0, len(digits), _DIGITS))
    return np.array([digest[:_DIGITS] in seen for digest in dataset.sample_fingerprints()], dtype=np.bool_)


def trained_on(entries: Iterable[Entry], dataset: Fingerprinted) -> int:
    """Count the samples of a data set that weights were trained on."""
    return int(marked([use for use in entries if use["as"] == "train"], dataset).sum())


def who_saw(entries: Iterable[Entry], dataset: Fingerprinted) -> str:
    """Say who saw samples of a data set, and how many of them each: ``5 by finetune (train)``."""
    counts = [(int(marked([use], dataset).sum()), use) for use in entries]
    return ", ".join(f"{count} by {use['by']} ({use['as']})" for count, use in counts if count)


def checked(value: Any, origin: str) -> list[Entry]:
    """Check the entries of a file, and return them.

    Raises:
        InputError: for what no version of hydractl writes.
    """
    if value is None:
        return []
    if not isinstance(value, list) or not all(_is_entry(one) for one in value):
        raise InputError(f"{origin} has a broken list of samples that were seen ('seen')")
    return value


def seen_in(document: Any, origin: str) -> list[Entry]:
    """Return the entries of a circuit or a mask, those of its start mask included.

    Raises:
        InputError: as :func:`checked` does.
    """
    if not isinstance(document, dict):
        return []
    start = document.get("start_mask")
    before = start.get("seen") if isinstance(start, dict) else None
    return merged(checked(before, origin), checked(document.get("seen"), origin))


def _is_entry(one: Any) -> bool:
    if not isinstance(one, dict) or type(one.get("n")) is not int:
        return False
    if not all(isinstance(one.get(key), str) for key in ("by", "as", "data", "hashes")):
        return False
    try:
        return len(base64.b64decode(one["hashes"], validate=True)) % _BYTES == 0
    except (binascii.Error, ValueError):
        return False
