"""Which samples a model has seen: short fingerprints that are stored with circuits, masks and checkpoints.

Scores of heads, a circuit, a temperature or a fine-tuning fits itself to its samples. Measured on the same samples, it
looks better than it is, so ``eval`` refuses them as test data. The content of a sample decides, not the name of its
file.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NotRequired, Protocol, TypedDict

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter, ValidationError

from hydractl.errors import InputError
from hydractl.files.circuit_answer import SeenRecord


class Fingerprinted(Protocol):
    """A data set whose samples can be fingerprinted."""

    def __len__(self) -> int: ...

    def fingerprint(self) -> str:
        """Return the fingerprint of the whole set."""
        ...

    def sample_fingerprints(self) -> Sequence[str]:
        """Return the fingerprint of each sample, in hex."""
        ...

    @property
    def decoder(self) -> str:
        """The versions of what decodes the samples; empty if nothing does."""
        ...


_BYTES, _DIGITS = 6, 12
"""How many bytes, and hex digits, of each sample's SHA-256 are kept.

Two different samples among a million times 50,000 get the same fingerprint with a chance of 0.0002.
"""

MOST = 65_536
"""The most fingerprints that are kept of one data set: the lowest ones.

They represent a larger set by a sample that does not depend on its order. A leak still shows: if one test sample in
twenty was seen, about fifty of them are recognised.
"""

Entry = TypedDict("Entry", {"by": str, "as": str, "data": str, "n": int, "hashes": str, "decoder": NotRequired[str]})
"""The record of one data set that was seen.

``by`` is the verb that saw the samples, ``as`` their role, ``data`` the fingerprint of the data set, ``n`` the number
of samples used, and ``hashes`` the base64 of the kept fingerprints, ascending, 6 bytes each. ``decoder`` has the
versions of what decoded the samples, and is empty for texts and arrays. Records of earlier versions of hydractl lack
it: their fingerprints are of the bytes of files, and can be compared with nothing.
"""


_SEEN = TypeAdapter(list[SeenRecord])


def entry(by: str, role: str, dataset: Fingerprinted) -> Entry:
    """Return the record that a command has seen a data set, by which its samples can be recognised later.

    Args:
        by: the verb, or the part of it, that saw the samples.
        role: the role of the samples: ``id``, ``ood``, ``train``, ``val``, ``ood_val`` or ``calibration``.
        dataset: the samples.
    """
    digests = dataset.sample_fingerprints()

    # Keep the lowest fingerprints, shortened, each once: of two large sets with the same samples these are the same.
    different = {digest[:_DIGITS] for digest in digests}
    lowest = sorted(different)[:MOST]
    kept_bytes = bytes.fromhex("".join(lowest))
    return {
        "by": by,
        "as": role,
        "data": dataset.fingerprint(),
        "n": len(digests),
        "hashes": base64.b64encode(kept_bytes).decode("ascii"),
        "decoder": dataset.decoder,
    }


def merged(*lists: Iterable[Entry]) -> list[Entry]:
    """Return the entries of several lists without repetitions, in the order of their first appearance.

    An entry is the record that a command has seen a data set. Two are the same if the same verb has seen the same data
    in the same role.
    """
    entry_by_key: dict[tuple[str, ...], Entry] = {}
    for use in itertools.chain(*lists):
        key = (use["by"], use["as"], use["data"], use["hashes"])
        entry_by_key.setdefault(key, use)  # the first of equal ones stays
    return list(entry_by_key.values())


def marked(entries: Iterable[Entry], dataset: Fingerprinted) -> npt.NDArray[np.bool_]:
    """Return which of the ``N`` samples of a data set are among those that the entries list, bool ``[N]``.

    An entry is the record that a command has seen a data set, with fingerprints (shortened hashes) of its samples.
    Entries of older versions, without a ``decoder``, have other hashes and are passed over.

    For sets larger than :data:`MOST` only some fingerprints are known, so a sample that is not marked may have been
    seen, too. Still, a leak of more than a few samples shows.
    """
    seen: set[str] = set()
    for use in entries:
        if "decoder" in use:
            seen.update(_kept_digests(use))
    are_seen = [digest[:_DIGITS] in seen for digest in dataset.sample_fingerprints()]
    return np.array(are_seen, dtype=np.bool_)


def _kept_digests(use: Entry) -> Iterator[str]:
    """Yield the fingerprints that an entry has, in hex."""
    all_digits = base64.b64decode(use["hashes"]).hex()
    for start in range(0, len(all_digits), _DIGITS):
        stop = start + _DIGITS
        yield all_digits[start:stop]


def incomparable(entries: Iterable[Entry]) -> str | None:
    """Return a phrase on samples that were seen and cannot be recognised in any data set; None if there are none."""
    old = [f"{use['by']} ({use['as']})" for use in entries if "decoder" not in use]
    if not old:
        return None
    return (
        f"what {', '.join(dict.fromkeys(old))} saw is known by fingerprints of an older form, which cannot be compared"
    )


def other_decoder(entries: Iterable[Entry], dataset: Fingerprinted) -> str | None:
    """Return the versions by which samples that were seen were decoded, if a data set is decoded by others; or None.

    Decoders of JPEG differ in bits, so a sample may not be recognised. Those of other formats do not.
    """
    for use in entries:
        decoder = use.get("decoder")
        if decoder and dataset.decoder and decoder != dataset.decoder:
            return decoder
    return None


def trained_on(entries: Iterable[Entry], dataset: Fingerprinted) -> int:
    """Count the samples of a data set that weights were trained on."""
    trainings = [use for use in entries if use["as"] == "train"]
    is_seen = marked(trainings, dataset)
    return int(is_seen.sum())


def who_saw(entries: Iterable[Entry], dataset: Fingerprinted) -> str:
    """Return a text that says who saw samples of a data set, and how many: ``5 by finetune (train)``."""
    uses = []
    for use in entries:
        count = int(marked([use], dataset).sum())
        if count:
            uses.append(f"{count} by {use['by']} ({use['as']})")
    return ", ".join(uses)


def checked(value: Any, origin: str) -> list[Entry]:
    """Return the entries of a file after checking them; an empty list for None.

    Raises:
        InputError: the value is nothing that a version of hydractl writes.
    """
    if value is None:
        return []
    try:
        _SEEN.validate_python(value)
    except ValidationError:
        raise InputError(f"{origin} has a broken list of samples that were seen ('seen')") from None
    entries: list[Entry] = value
    return entries


def seen_in(document: Any, origin: str) -> list[Entry]:
    """Return the records of the data sets that a circuit or a mask of heads was made with, each once.

    Those of the mask that its search started from (``start_mask``) come first. The list is empty if the document is no
    JSON object.

    Args:
        document: the circuit or mask, as read from a file.
        origin: the name of the file in messages.

    Raises:
        InputError: the entries are nothing that a version of hydractl writes.
    """
    if not isinstance(document, dict):
        return []
    start = document.get("start_mask")
    before = start.get("seen") if isinstance(start, dict) else None
    seen_before = checked(before, origin)
    seen_since = checked(document.get("seen"), origin)
    return merged(seen_before, seen_since)
