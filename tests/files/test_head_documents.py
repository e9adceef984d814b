"""Masks, scores and circuits in files: every problem is named."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from hydractl.errors import InputError
from hydractl.files.head_documents import mask_from_json, ranking_from_json, scores_from_json
from hydractl.heads.mask import HeadMask, HeadScores, Site
from hydractl.jsonio import parse_json, shown
from tests.heads.test_mask import PATHS, SITES, A, B, C, mask
from tests.running import refused

# --- JSON text --------------------------------------------------------------------------------------------------------

TEXTS: dict[str, tuple[str | bytes, str]] = {
    "empty": (b"", "f.json is empty"),
    "byte order mark": (b"\xef\xbb\xbf{}", "f.json starts with a byte order mark"),
    "UTF-16": ("{}".encode("utf-16"), "f.json is not UTF-8 text (byte 0)"),
    "Latin 1": ('{"a": "é"}'.encode("latin-1"), "f.json is not UTF-8 text (byte 7)"),
    "cut off": (b'{"schema": "x",', "f.json is not JSON: Expecting property name enclosed in double quotes"),
    "two documents": (b"{}\n{}", "f.json is not JSON: Extra data at line 2, column 1"),
    "NaN": (b'{"a": NaN}', "f.json contains NaN, which is not a number in JSON"),
    "beyond floats": (b"[1e400]", "f.json contains 1e400, which is too large for a number"),
    "duplicate key": (b'{"a": 1, "b": {"c": 1, "c": 1}}', "f.json has the key 'c' twice in one object"),
    "huge integer": (b"[" + b"1" * 5000 + b"]", "f.json cannot be read: "),
    "half a character": (b'["\\ud83d"]', "f.json contains half a character (an unpaired surrogate)"),
    "10 MB of lists": (b"[" * 10_000_000, "f.json is nested too deeply to be a hydractl file"),
}


@pytest.mark.fault(21)
@pytest.mark.parametrize("case", list(TEXTS))
def test_text_that_is_no_strict_json_is_refused(case: str) -> None:
    text, expected = TEXTS[case]
    caught = refused(InputError, parse_json, text, "f.json")
    assert caught.message.startswith(expected)
    assert "\n" not in caught.message
    assert len(caught.message) < 200
    assert caught.exit_code == 3


def test_strict_json_is_read() -> None:
    assert parse_json(b' {"a": [1, -2.5, null, true, "\\ud83d\\ude00 \\u0041", 1e-400]} \n', "f") == {
        "a": [1, -2.5, None, True, "😀 A", 0.0]
    }


def test_values_are_shown_short_and_escaped() -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    assert shown("\x1b[31m") == "'\\x1b[31m'"
    assert shown("\ud800") == "'\\ud800'"
    assert shown("x" * 1000) == "'" + "x" * 56 + "..."
    assert shown(nested) == "a nested list"


# --- masks ------------------------------------------------------------------------------------------------------------


def mask_document(**sites: Any) -> dict[str, Any]:
    """A right mask, with other entries for ``a``, ``b`` and ``c``."""
    names = {"a": A, "b": B, "c": C}
    document = mask((0, 2), (), (3,)).to_json("vit")
    document["sites"].update({names[key]: value for key, value in sites.items()})
    return document


def problems_of(read: Any, document: Any, **more: Any) -> list[str]:
    caught = refused(InputError, read, document, SITES, "f.json", **more)
    for line in (caught.message, *caught.problems):
        assert "\n" not in line
        assert len(line) < 300
    return caught.problems


def places_of(read: Any, document: Any) -> list[str]:
    """Where each problem is and what is there, without what the library says should be there."""
    return [problem.partition(": Input should ")[0] for problem in problems_of(read, document)]


def test_a_mask_comes_back_from_its_json() -> None:
    some = mask((0, 2), (), (3,))
    document = some.to_json("vit", {"seed": 1})
    assert list(document) == ["schema", "arch", "sites", "source"]
    assert document["sites"][A] == {"heads": 3, "kept": [0, 2]}
    assert mask_from_json(json.loads(json.dumps(document)), SITES, "f.json", "vit") == some
    assert list(mask(*[()] * 3).to_json()) == ["schema", "sites"]


def test_only_schema_and_kept_are_required_and_order_is_free() -> None:
    document = {"schema": "hydractl.mask/1", "sites": {p: {"kept": [1, 0]} for p in reversed(PATHS)}}
    read = mask_from_json(document, SITES, "f.json", "vit")
    assert read == mask((0, 1), (0, 1), (0, 1))
    assert list(read.kept) == list(read.heads) == PATHS, "sites always stand in model order"


@pytest.mark.fault(20)
def test_a_mask_of_another_model_is_refused_with_both_shapes() -> None:
    other = HeadMask.full([Site(f"blocks.{i}.attn", 12, 4, 48) for i in range(12)])
    caught = refused(InputError, mask_from_json, other.to_json(), SITES, "m.json")
    assert caught.message == (
        "mask m.json does not fit the model (3 sites, heads [3, 2, 4]; the mask has 12 sites x 12 heads)"
    )
    assert caught.hint == "make the mask from this model, or check the site names with: hydractl --info MODEL"
    assert "site blocks.0.attn has 12 heads in the mask, 3 in the model" in caught.problems
    assert "unknown site 'blocks.2.attn'" in caught.problems


@pytest.mark.fault(21)
def test_every_problem_of_a_mask_is_listed() -> None:
    document = mask_document(a={"heads": 3, "kept": [0, 0, -1, 3, 1.0, True, "2", None, [1]]}, b={"heads": 2})
    assert places_of(mask_from_json, document) == [
        f"sites.{A}.kept[2] is -1",
        f"sites.{A}.kept[4] is 1.0",
        f"sites.{A}.kept[5] is True",
        f"sites.{A}.kept[6] is '2'",
        f"sites.{A}.kept[7] is None",
        f"sites.{A}.kept[8] is [1]",
        f"sites.{B}.kept is missing",
    ]
    for kept, problem in (([0, 0], "names a head twice"), ([3], "names a head that is not there: the site has 3")):
        assert problems_of(mask_from_json, mask_document(a={"heads": 3, "kept": kept})) == [f"sites.{A}.kept {problem}"]
    document = mask_document(a={"kept": [3, 1]}, b={"heads": 3, "kept": []})
    document["sites"]["blocks.9.attn"] = {"heads": 1, "kept": []}
    del document["sites"][C]
    document["arch"] = "deit"
    assert problems_of(mask_from_json, document, arch="vit") == [
        "unknown site 'blocks.9.attn'",
        f"site {C} is missing",
        f"site {A}: heads [3] are outside 0..2",
        f"site {B} has 3 heads in the mask, 2 in the model",
        "made for 'deit', the model is 'vit'",
    ]
    assert mask_from_json({**mask_document(), "arch": "deit"}, SITES, "f.json").counts() == [2, 0, 1], (
        "unchecked where no architecture is asked for"
    )


@pytest.mark.parametrize(
    ("entry", "problem"),
    [(None, "attn is None: Input should"), ({}, ".kept is missing"), ({"kept": {"0": 1}}, ".kept is {'0': 1}: Input")],
)
def test_a_site_without_a_list_of_heads(entry: Any, problem: str) -> None:
    [found] = problems_of(mask_from_json, mask_document(b=entry))
    assert problem in found


@pytest.mark.fault(20, 43)
@pytest.mark.parametrize("heads", [-2, 2.0, True, "2", [2], pytest.param(10**4000, id="huge")])
def test_a_number_of_heads_that_is_none(heads: Any) -> None:
    [problem] = problems_of(mask_from_json, mask_document(b={"heads": heads, "kept": []}))
    assert problem.startswith(f"sites.{B}.heads is {shown(heads)}: Input should be ")


@pytest.mark.parametrize("sites", [None, []])
def test_sites_that_are_no_object(sites: Any) -> None:
    document = {"schema": "hydractl.mask/1", "sites": sites}
    expected = [f"sites is {sites}: Input should be a valid dictionary"]
    assert problems_of(mask_from_json, document) == expected
    assert problems_of(scores_from_json, {**document, "schema": "hydractl.scores/1"}) == expected


def test_a_mask_file_of_any_other_kind_is_refused_first() -> None:
    for document in ([], "mask", None, 3):
        with pytest.raises(InputError, match=r"^f\.json is not a JSON object, so it is no hydractl\.mask/1 file$"):
            mask_from_json(document, SITES, "f.json")
    for schema in (None, "hydractl.scores/1", "hydractl.mask/2", ["hydractl.mask/1"], {"a": 1}):
        caught = refused(InputError, mask_from_json, {**mask_document(), "schema": schema}, SITES, "f.json")
        assert caught.message == f"f.json has the schema {schema!r}, expected 'hydractl.mask/1'"


@pytest.mark.fault(21)
@pytest.mark.parametrize("depth", [200, 850, 950, 975])
def test_nesting_that_just_fits_the_parser_is_no_traceback(depth: int) -> None:
    text = json.dumps(mask_document(a={"kept": ["DEEP"]})).replace('"DEEP"', "[" * depth + "]" * depth)
    with pytest.raises(InputError):
        mask_from_json(parse_json(text, "f.json"), SITES, "f.json")


# --- scores -----------------------------------------------------------------------------------------------------------


def scores_document(**sites: Any) -> dict[str, Any]:
    names = {"a": A, "b": B, "c": C}
    values = {A: [0.5, 1, -2.5], B: [0.0, 1e-300], C: [3, 2, 1, 0]}
    return {"schema": "hydractl.scores/1", "sites": {**values, **{names[k]: v for k, v in sites.items()}}}


def test_scores_come_back_from_their_json() -> None:
    scores = HeadScores({A: (0.5, -math.inf, 2.0), B: (1e-300, -0.0), C: (3.0, 2.0, 1.0, 0.0)}, {"method": "taylor"})
    document = scores.to_json()
    assert document["sites"][A] == [0.5, None, 2.0]
    assert document["method"] == "taylor"
    assert scores_from_json(json.loads(json.dumps(document)), SITES, "f.json") == scores


def test_scores_stand_in_model_order_and_are_floats() -> None:
    document = scores_document()
    document["sites"] = {p: document["sites"][p] for p in reversed(PATHS)}
    scores = scores_from_json(document, SITES, "f.json").scores
    assert list(scores) == PATHS
    assert all(type(v) is float for values in scores.values() for v in values)


@pytest.mark.fault(21)
def test_every_problem_of_scores_is_listed() -> None:
    document = scores_document(a=[math.nan, math.inf, "1"], c=[True, [], 10**400, {"x": 1}])
    assert places_of(scores_from_json, document) == [
        f"sites.{A}[0] is nan",
        f"sites.{A}[1] is inf",
        f"sites.{A}[2] is '1'",
        f"sites.{C}[0] is True",
        f"sites.{C}[1] is []",
        f"sites.{C}[2] is {'1' + '0' * 56}...",
        f"sites.{C}[3] is {{'x': 1}}",
    ]
    document = scores_document(b=[1, 2, 3])
    document["sites"]["norm"] = [1]
    assert problems_of(scores_from_json, document) == [
        "unknown site 'norm'",
        f"site {B} has 3 scores, the model 2 heads",
    ]


@pytest.mark.parametrize("values", [None, "ab", {"0": 1, "1": 2}])
def test_a_site_without_a_list_of_scores(values: Any) -> None:
    [problem] = problems_of(scores_from_json, scores_document(b=values))
    assert B in problem


def test_scores_of_one_tower_are_enough() -> None:
    sites = [Site("v.0", 2, 8, 16, "visual"), Site("v.1", 2, 8, 16, "visual"), Site("t.0", 1, 8, 8, "text")]

    def read(**found: list[float]) -> HeadScores:
        return scores_from_json({"schema": "hydractl.scores/1", "sites": found}, sites, "s.json")

    assert list(read(**{"t.0": [1.0]}).scores) == ["t.0"]
    assert list(read(**{"v.1": [1, 2], "v.0": [3, 4]}).scores) == ["v.0", "v.1"]
    for broken in ({"v.0": [1, 2]}, {"v.0": [1, 2], "t.0": [1]}):
        error = refused(InputError, read, **broken)  # type: ignore[arg-type]
        assert error.problems == ["site v.1 is missing"]
    error = refused(InputError, read)
    assert len(error.problems) == 3


def test_scores_of_a_mask_file_are_refused() -> None:
    with pytest.raises(InputError, match=r"^f has the schema 'hydractl\.mask/1', expected 'hydractl\.scores/1'$"):
        scores_from_json(mask_document(), SITES, "f")


# --- rankings ---------------------------------------------------------------------------------------------------------


def circuit(*steps: Any, **more: Any) -> dict[str, Any]:
    removed = [{"site": s[0], "head": s[1]} if isinstance(s, tuple) else s for s in steps]
    return {"schema": "hydractl.circuit/2", "removed": removed, **more}


def test_a_ranking_keeps_its_order() -> None:
    ranking = ranking_from_json(circuit((C, 3), (A, 0), (C, 0)), SITES, "f.json")
    assert ranking.removed == ((C, 3), (A, 0), (C, 0))
    assert ranking.start == ()
    assert ranking_from_json(circuit(), SITES, "f.json").removed == ()


def test_a_ranking_may_start_from_a_mask() -> None:
    start = mask((0, 1), (0, 1), (0, 1, 2, 3)).to_json()
    assert ranking_from_json(circuit((A, 0), start_mask=start), SITES, "f.json").start == ((A, 2),)
    assert ranking_from_json(circuit((A, 0), start_mask=None), SITES, "f.json").start == ()
    with pytest.raises(InputError, match=r"^mask f\.json \(start_mask\) does not fit the model"):
        ranking_from_json(circuit((A, 0), start_mask={**start, "sites": {}}), SITES, "f.json")
    assert problems_of(ranking_from_json, circuit((B, 0), (A, 2), start_mask=start)) == [
        f"head 2 of {A} is already gone in its start mask"
    ]


@pytest.mark.fault(20)
def test_a_circuit_of_a_model_with_other_numbers_of_heads_is_refused() -> None:
    document = {"schema": "hydractl.circuit/2", "sites": {A: 3, B: 12, C: 4}, "removed": [{"site": B, "head": 1}]}
    caught = refused(InputError, ranking_from_json, document, SITES, "c.json")
    assert caught.message == "circuit c.json does not fit the model"
    assert caught.problems == [f"site {B} has 12 heads in the circuit, 2 in the model"]


@pytest.mark.fault(21)
def test_every_problem_of_a_ranking_is_listed() -> None:
    steps = [(A, 0), ("x", 0), (A, 3), (A, 0)]
    assert problems_of(ranking_from_json, circuit(*steps)) == [
        "step 2: unknown site 'x'",
        f"step 3: head 3 of {A} is outside 0..2",
        f"step 4: head 0 of {A} is removed twice",
    ]
    steps = [(A, 0), (A, -1), (A, True), (A, "0"), (A, 1.0), ([A], 0), ({}, 1), None, [A, 0]]
    assert places_of(ranking_from_json, circuit(*steps)) == [
        "removed[1].head is -1",
        "removed[2].head is True",
        "removed[3].head is '0'",
        "removed[4].head is 1.0",
        f"removed[5].site is ['{A}']",
        "removed[6].site is {}",
        "removed[7] is None",
        f"removed[8] is ['{A}', 0]",
    ]


@pytest.mark.parametrize("removed", [None, {}])
def test_a_circuit_without_a_list(removed: Any) -> None:
    [problem] = problems_of(ranking_from_json, {**circuit(), "removed": removed})
    assert "removed" in problem
