"""hydra.yaml: what is refused, and what YAML tricks do not do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hydractl.errors import UsageError
from tests.calls import checked

Refused = Callable[..., list[str]]
FLAGS: dict[str, Any] = {"model": ["a.st"], "method": "random", "keep": "8"}


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        (
            "seed: 1\nprune: {keep: 3\nx: 2",
            "hydra.yaml line 3: while parsing a flow mapping, expected ',' or '}', but got ':'",
        ),
        ("seed: 1\nlimit: 2\nseed: 3", "hydra.yaml line 1: the key 'seed' is there twice"),
        ("prune:\n  keep: 1\n  keep: 2", "hydra.yaml line 2: the key 'keep' is there twice"),
        ("batch-size: 1\nbatch_size: 2", "hydra.yaml: the file has the key 'batch_size' twice"),
        ("- seed", "hydra.yaml: the file must be a mapping of options to values"),
        ("seed", "hydra.yaml: the file must be a mapping of options to values"),
        ("seed: 1\nprune: 3", "hydra.yaml: prune must be a mapping of options to values"),
        ("{[a]: 1}", "hydra.yaml line 1: while constructing a mapping, found unhashable key"),
        ("seed: *nowhere", "hydra.yaml line 1: found undefined alias 'nowhere'"),
        ("a: 1\n---\nb: 2", "hydra.yaml line 2: expected a single document in the stream, but found another document"),
        ("seed: \x07", "hydra.yaml: a character that YAML does not allow at position 6"),
        ("sead: 1", "hydra.yaml: unknown key 'sead'; did you mean 'seed'?"),
        ("config: other.yaml", "hydra.yaml: unknown key 'config'"),
        ("prunee: {keep: 1}", "hydra.yaml: unknown key 'prunee'; did you mean 'prune'?"),
        (
            "eval:\n  keep: 1",
            "hydra.yaml: unknown key 'keep' of eval; see hydractl score, extract-circuit or prune",
        ),
        ("prune: {data: {a: {b: c}}}", "hydra.yaml: data is nested too deeply"),
        ("model: &x [*x]", "hydra.yaml line 1: found unconstructable recursive node"),
        ("data: {a: b}", "--data takes one value, not a mapping (hydra.yaml:data)"),
        ("fuse: []", "hydra.yaml: fuse must be a mapping of options to values"),
    ],
)
def test_exact_words(yaml: str, message: str, refused: Refused) -> None:
    assert refused("prune", FLAGS, yaml=yaml) == [message]


@pytest.mark.fault(57)
def test_absurd_nesting(refused: Refused) -> None:
    assert refused("prune", FLAGS, yaml="[" * 2_000) == ["hydra.yaml is nested too deeply"]


def test_not_utf8(tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "hydra.yaml").write_bytes(b"data: \xff\n")
    assert refused("prune", FLAGS) == ["hydra.yaml is not UTF-8 text (byte 6)"]


@pytest.mark.parametrize(("name", "why"), [("none.yaml", "No such file or directory"), (".", "Is a directory")])
def test_a_named_file_that_cannot_be_read(name: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        checked("prune", {**FLAGS, "config": name}, {}, tmp_path)
    assert caught.value.message == f"cannot read {name}: {why}"


def test_several_unknown_keys_at_once(refused: Refused) -> None:
    assert len(refused("prune", FLAGS, yaml="sead: 1\nlimt: 2\nbench: {round: 2}")) == 3


@pytest.mark.parametrize("yaml", ["", "# nothing\n", "prune:\n", "seed: null\nprune: {limit: ~}", "\ufeffseed: 0"])
def test_empty_files_mappings_and_values_are_not_given(yaml: str, merged: Callable[..., Any]) -> None:
    settings = merged("prune", FLAGS, yaml=yaml)
    assert (settings.seed, settings.limit) == (0, None)


def test_yaml_never_guesses(merged: Callable[..., Any]) -> None:
    """YAML 1.1 would read these as a number in base 60, a boolean and a date."""
    settings = merged("eval", {"model": ["a.st"]}, yaml="test: 12:30\nlabel_map: no\npredictions: 2024-01-01.st")
    assert (settings.test.text, settings.label_map.text, settings.predictions) == ("12:30", "no", "2024-01-01.st")


def test_ood_as_a_mapping(merged: Callable[..., Any]) -> None:
    yaml = "ood: {svhn: b.npz, 'cifar-10:near': 'list.txt?root=/d'}"
    sets = merged("eval", {"model": ["a.st"], "test": "d"}, yaml=yaml).ood
    assert [ood_set.text for ood_set in sets] == ["svhn=b.npz", "cifar-10:near=list.txt?root=/d"]


def test_with_is_the_key_of_with(merged: Callable[..., Any]) -> None:
    settings = merged("prune", FLAGS, yaml="prune: {with: m.json, share-sites: 2}")
    assert (settings.with_mask.text, settings.share_sites) == ("m.json", 2)


def test_a_verb_may_be_written_with_an_underscore(merged: Callable[..., Any]) -> None:
    flags = {"model": ["a.st"], "val": ["d"], "objective": ["acc"]}
    assert merged("extract-circuit", flags, yaml="extract_circuit: {budget: 4}").budget == 4


def test_keys_for_others_are_passed_over(merged: Callable[..., Any]) -> None:
    settings = merged("prune", FLAGS, yaml="x-study:\n  rows: [{a: {b: 1}}]\nx_more: 2\nseed: 4")
    assert settings.seed == 4
