"""Fingerprints of samples that were seen: packed, merged and found again."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence

import pytest

from hydractl.errors import InputError
from hydractl.files import fingerprints as seen


class Named:
    """A data set of which only the content of its samples is known."""

    decoder = ""

    def __init__(self, contents: Sequence[str]) -> None:
        self.contents = list(contents)

    def __len__(self) -> int:
        return len(self.contents)

    def sample_fingerprints(self) -> list[str]:
        return [hashlib.sha256(text.encode()).hexdigest() for text in self.contents]

    def fingerprint(self) -> str:
        return hashlib.sha256("".join(self.sample_fingerprints()).encode()).hexdigest()


def names(start: int, stop: int) -> list[str]:
    return [f"sample {i}" for i in range(start, stop)]


def test_the_samples_that_were_seen_are_marked() -> None:
    entry = seen.entry("extract-circuit", "id", Named(names(0, 100)))
    found = seen.marked([entry], Named(names(90, 120)))
    assert found.tolist() == [i < 100 for i in range(90, 120)]
    assert seen.who_saw([entry], Named(names(90, 120))) == "10 by extract-circuit (id)"
    assert entry["n"] == 100
    assert len(base64.b64decode(entry["hashes"])) == 6 * 100


def test_neither_order_nor_repetition_of_samples_matters() -> None:
    once = seen.entry("finetune", "train", Named(names(0, 50)))
    again = seen.entry("finetune", "train", Named([*reversed(names(0, 50)), "sample 3"]))
    assert once["hashes"] == again["hashes"]
    assert (once["n"], again["n"]) == (50, 51)


def test_an_older_entry_marks_nothing_and_is_named() -> None:
    entry = seen.entry("finetune", "train", Named(names(0, 50)))
    assert seen.incomparable([entry]) is None
    del entry["decoder"]
    assert not seen.marked([entry], Named(names(0, 50))).any()
    assert str(seen.incomparable([entry])).startswith("what finetune (train) saw is known by fingerprints of an older")


def test_no_entries_mark_nothing() -> None:
    assert not seen.marked([], Named(names(0, 5))).any()
    assert seen.who_saw([], Named(names(0, 5))) == ""


def test_of_a_large_set_the_lowest_fingerprints_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen, "MOST", 40)
    train = Named(names(0, 1000))
    entry = seen.entry("finetune", "train", train)
    lowest = sorted(int(one[:12], 16) for one in train.sample_fingerprints())[:40]
    expected = b"".join(value.to_bytes(6, "big") for value in lowest)
    assert base64.b64decode(entry["hashes"]) == expected
    # A test set that leaked as a whole shows, though only a part of the training set is known.
    assert seen.marked([entry], Named(names(0, 500))).any()
    assert not seen.marked([entry], Named(names(1000, 2000))).any()


def test_one_data_set_is_kept_once_for_each_use() -> None:
    data = Named(names(0, 10))
    circuit, tuned = (seen.entry(by, "id", data) for by in ("extract-circuit", "finetune"))
    assert seen.merged([circuit], [circuit, tuned], [tuned]) == [circuit, tuned]


def test_what_a_mask_and_its_start_mask_have_seen() -> None:
    first, second = (seen.entry("extract-circuit", "id", Named(names(i, i + 3))) for i in (0, 3))
    document = {"seen": [second], "start_mask": {"seen": [first]}}
    assert seen.seen_in(document, "c.json") == [first, second]
    assert seen.seen_in({}, "c.json") == []


GOOD = {"by": "finetune", "as": "train", "data": "ab", "n": 1, "hashes": "AAAAAAAA"}


@pytest.mark.parametrize(
    "broken",
    [
        {},
        [1],
        [{**GOOD, "n": True}],
        [{**GOOD, "by": None}],
        [{**GOOD, "hashes": "AAAA"}],
        [{**GOOD, "decoder": 1}],
        [{**GOOD, "hashes": "?AAAAAAA"}],
        [{key: value for key, value in GOOD.items() if key != "data"}],
    ],
)
def test_a_broken_list_is_refused(broken: object) -> None:
    assert seen.checked([GOOD], "a.st") == [GOOD]
    with pytest.raises(InputError, match=r"a\.st has a broken list"):
        seen.checked(broken, "a.st")
