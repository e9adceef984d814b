"""Flag over variable over the verb's mapping over a top-level key over the built-in value, for every kind of option."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest

from hydractl.expressions.conditions import parse_requirement
from hydractl.expressions.models import ModelRef

PRUNE = {"model": ["a.st"], "method": "random", "keep": "8"}
LEVELS = ("flag", "variable", "verb", "shared")


@pytest.mark.parametrize("present", [c for n in range(5) for c in combinations(LEVELS, n)])
def test_every_combination_of_sources(present: tuple[str, ...], merged: Callable[..., Any]) -> None:
    values = {"flag": 11, "variable": 12, "verb": 13, "shared": 14}
    lines = []
    if "shared" in present:
        lines.append("batch-size: 14")
    if "verb" in present:
        lines.append("prune: {batch_size: 13}")
    flags = {**PRUNE, **({"batch_size": "11"} if "flag" in present else {})}
    env = {"HYDRACTL_BATCH_SIZE": "12"} if "variable" in present else {}
    settings = merged("prune", flags, env, "\n".join(lines))
    sources = {
        "flag": "flag",
        "variable": "HYDRACTL_BATCH_SIZE",
        "verb": "hydra.yaml:prune.batch_size",
        "shared": "hydra.yaml:batch_size",
    }
    first = next((level for level in LEVELS if level in present), None)
    assert settings.batch_size == (64 if first is None else values[first])
    assert settings.sources["batch_size"] == ("default" if first is None else sources[first])


@pytest.mark.parametrize(
    ("verb", "name", "text", "expected"),
    [
        ("prune", "samples", "7", 7),
        ("finetune", "lr", "1e-4", [1e-4]),
        ("finetune", "warmup", "500", 500.0),
        ("prune", "json", "yes", True),
        ("prune", "json", "off", False),
        ("prune", "scope", "global", "global"),
        ("prune", "data", "no", "no"),
        ("bench", "batch_size", "1, 4", [1, 4]),
        ("fuse", "merge", "mlp,norm", ["mlp", "norm"]),
        ("eval", "require", "id.ece<=0.1", [parse_requirement("id.ece<=0.1")]),
    ],
)
def test_text_means_the_same_in_every_source(
    verb: str, name: str, text: str, expected: Any, merged: Callable[..., Any]
) -> None:
    needed: dict[str, Any] = {"model": ["a.st"]}
    if verb == "prune":
        needed |= {"method": "random", "keep": "8"}
    elif verb == "finetune":
        needed |= {"train": "d.npz"}
    elif verb == "eval":
        needed |= {"data": "d.npz"}
    from_flag = merged(verb, {**needed, name: [text] if isinstance(expected, list) else text})
    from_variable = merged(verb, needed, {f"HYDRACTL_{name.upper()}": text})
    from_verb = merged(verb, needed, yaml=f"{verb}:\n  {name}: {text}\n")
    from_top = merged(verb, needed, yaml=f"{name}: {text}\n")
    for settings in (from_flag, from_variable, from_verb, from_top):
        value = getattr(settings, name)
        assert (value.text if name == "data" else value) == expected


def test_a_switch_can_be_turned_off_by_its_flag(merged: Callable[..., Any]) -> None:
    settings = merged("prune", {**PRUNE, "json": False}, {"HYDRACTL_JSON": "1"})
    assert settings.json is False
    assert settings.sources["json"] == "flag"


def test_an_empty_variable_is_no_value(merged: Callable[..., Any]) -> None:
    assert merged("prune", PRUNE, {"HYDRACTL_LIMIT": ""}).limit is None


def test_model_from_file_and_from_flags(merged: Callable[..., Any]) -> None:
    assert merged("fuse", {}, yaml="model: [a.st, b.st]").model == [ModelRef("a.st"), ModelRef("b.st")]
    assert merged("fuse", {}, yaml="model: one file.st").model == [ModelRef("one file.st")]
    assert merged("fuse", {"model": ["c.st"]}, yaml="model: [a.st, b.st]").model == [ModelRef("c.st")]
    assert merged("fuse", {}, {"HYDRACTL_MODEL": "a b.st\nc.st"}).model == [ModelRef("a b.st"), ModelRef("c.st")]


def test_config_by_flag_then_variable_then_hydra_yaml(tmp_path: Any, merged: Callable[..., Any]) -> None:
    for name, seed in (("flag.yaml", 1), ("variable.yaml", 2)):
        (tmp_path / name).write_text(f"seed: {seed}")
    env = {"HYDRACTL_CONFIG": "variable.yaml"}
    by_flag = merged("prune", {**PRUNE, "config": "flag.yaml"}, env, "seed: 3")
    assert (by_flag.seed, by_flag.sources["seed"]) == (1, "flag.yaml:seed")
    assert merged("prune", PRUNE, env, "seed: 3").seed == 2
    assert merged("prune", PRUNE, {}, "seed: 3").seed == 3


def test_a_weightier_alternative_sets_the_other_aside(merged: Callable[..., Any]) -> None:
    yaml = "model: a.st\nprune: {method: taylor, data: d.npz, keep: 8, samples: 100}"
    settings = merged("prune", {"mask": "m.json"}, yaml=yaml)
    assert (settings.mask.text, settings.method, settings.keep, settings.samples) == ("m.json", None, None, 512)
    assert settings.sources["method"] == "default, as --mask sets aside hydra.yaml:prune.method"
    settings = merged("prune", {"remove": "3"}, yaml=yaml)
    assert (settings.keep, settings.remove) == (None, 3)
    settings = merged("prune", {}, {"HYDRACTL_SCOPE": "global"}, yaml + "\norder: sequential")
    assert settings.order is None


def test_alternatives_of_the_same_weight_are_refused(refused: Callable[..., list[str]]) -> None:
    flags = {"model": ["a.st"], "method": "random", "scores": "s.json", "keep": "1", "remove": "2"}
    assert refused("prune", flags) == [
        "give only one of --method (flag), --scores (flag)",
        "give only one of --keep (flag), --remove (flag)",
    ]


def test_lists_do_not_share_their_defaults(merged: Callable[..., Any]) -> None:
    merged("bench", {"model": ["a.st"]}).batch_size.append(99)
    assert merged("bench", {"model": ["a.st"]}).batch_size == [1, 8]
