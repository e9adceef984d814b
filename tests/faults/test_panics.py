"""Tokenizers that panic at a text: that text is the error, or is left out, wherever a tokenizer is called.

A panic of the tokenizers' library, which is written in Rust, does not derive from ``Exception``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

import hydractl
from examples.serve.server import tokenized
from hydractl.cli.app import main
from hydractl.errors import InputError, SampleError, UsageError
from hydractl.families.hf.texts import prompt_tokens
from tests.pico import published
from tests.running import read_json, run

# Whatever is neither a small letter nor a space is cut into pieces of no length.
_OTHERS = {"type": "Split", "pattern": {"Regex": "[a-z ]+"}, "behavior": "Removed", "invert": False}
_PANICS = {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [_OTHERS, {"type": "FixedLength", "length": 0}]}}
_FAILS = {"model": {"type": "WordPiece", "vocab": {"a": 4}, "unk_token": "none", "continuing_subword_prefix": "",
                    "max_input_chars_per_word": 100}}  # fmt: skip
_NEVER_READS = {"type": "TemplateProcessing", "special_tokens": {}}
_NEVER_READS |= {"single": [{"Sequence": {"id": "B", "type_id": 0}}], "pair": [{"Sequence": {"id": "A", "type_id": 0}}]}
PARTS: dict[str, dict[str, Any]] = {"panics": _PANICS, "fails": _FAILS}
GOOD = {"panics": ["fine", "a film", "dull"], "fails": ["a", "a a", "a a a"]}
BAD = "7"


def changed(variant: str, folder: Path, part: dict[str, Any]) -> str:
    """A folder as the library saves a model, with part of its tokenizer replaced."""
    file = published(variant, folder) / "tokenizer.json"
    file.write_text(json.dumps({**read_json(file), **part}))
    return str(folder)


def a_set(path: Path, texts: list[str], labelled: bool = True) -> str:
    rows = [{"text": text, "label": number % 2} if labelled else {"text": text} for number, text in enumerate(texts)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


@pytest.mark.fault(87)
def test_the_panic_is_one() -> None:
    tokenizer = Tokenizer.from_str(json.dumps({"version": "1.0", "added_tokens": [], **_PANICS, **_FAILS}))
    with pytest.raises(BaseException, match="chunk size") as raised:
        tokenizer.encode(BAD)
    assert not isinstance(raised.value, Exception)


@pytest.mark.fault(87)
@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize("case", PARTS)
def test_a_text_at_which_the_tokenizer_fails_is_named_or_left_out(
    case: str, workers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = changed("bert", tmp_path / "bert", PARTS[case])
    first, *others = GOOD[case]
    good = a_set(tmp_path / "good.jsonl", [first, *others])
    mixed = a_set(tmp_path / "mixed.jsonl", [first, BAD, *others, f"{BAD}{BAD}"])
    predict = ["predict", model, "--workers", workers]
    run(*predict, mixed, "-o", "-", code=3)
    told = capsys.readouterr().err
    assert "error: cannot read mixed.jsonl#" in told and "this text ('7" in told and f"(INPUT {mixed})" in told
    run(*predict, good, "-o", "-")
    expected = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    run(*predict, mixed, "-o", "-", "--on-bad", "skip")
    streams = capsys.readouterr()
    rows = [json.loads(line) for line in streams.out.splitlines()]
    assert [row["id"] for row in rows] == ["mixed.jsonl#0", "mixed.jsonl#2", "mixed.jsonl#3"]
    assert [row["confidence"] for row in rows] == pytest.approx([row["confidence"] for row in expected], abs=1e-6)
    assert "2 of 5 texts are left out, as they cannot be read: mixed.jsonl#1, mixed.jsonl#4" in streams.err


@pytest.mark.fault(87)
def test_an_eval_of_such_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = changed("bert", tmp_path / "bert", _PANICS)
    mixed = a_set(tmp_path / "mixed.jsonl", ["fine", BAD, "a film", "dull", "long " * 30])
    evaluate = ["eval", model, "--allow-seen", "--test", mixed, "-o", str(tmp_path / "e.json")]
    run(*evaluate, code=3)
    assert "error: cannot read mixed.jsonl#1: the tokenizer cannot read this text ('7',)" in capsys.readouterr().err
    run(*evaluate, "--on-bad", "skip", "--json")
    streams = capsys.readouterr()
    document = json.loads(streams.out)
    assert document["models"][0]["id"]["n"] == 4
    assert document["test"]["id"]["skipped"] == {"n": 1, "ids": ["mixed.jsonl#1"]}


@pytest.mark.fault(87)
def test_all_texts_of_a_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = changed("bert", tmp_path / "bert", _PANICS)
    run("predict", model, a_set(tmp_path / "bad.jsonl", [BAD, BAD]), "-o", "-", "--on-bad", "skip", code=3)
    assert "error: not one of the 2 inputs can be read" in capsys.readouterr().err


@pytest.mark.fault(87)
@pytest.mark.parametrize("variant", ["bert", "llama"])
def test_a_tokenizer_that_reads_nothing(variant: str, tmp_path: Path) -> None:
    """A decoder's tokenizer is asked for the end of a text when the model is opened."""
    model = changed(variant, tmp_path / variant, {"post_processor": _NEVER_READS})
    with pytest.raises(InputError, match=r"the tokenizer cannot read this text|tokenizer cannot be read"):
        hydractl.load(model, device="cpu").preprocess(["a film"])


@pytest.mark.fault(87)
def test_prompts_of_classes(tmp_path: Path) -> None:
    model = hydractl.load(changed("bert", tmp_path / "bert", _PANICS), device="cpu")
    prompts = ["a film", f"a {BAD}"]
    with pytest.raises(SampleError, match="the tokenizer cannot read this text 'a 7'") as raised:
        prompt_tokens(model.description.preprocess, prompts, full_length=True)
    assert prompts[raised.value.position] == "a 7"


@pytest.mark.fault(87, 78)
def test_the_service_answers_with_a_status(tmp_path: Path) -> None:
    from starlette.exceptions import HTTPException

    model = hydractl.load(changed("bert", tmp_path / "bert", _PANICS), device="cpu")
    with pytest.raises(HTTPException) as raised:
        tokenized(model, ["fine", BAD])
    assert raised.value.status_code == 422 and BAD not in raised.value.detail
    assert tokenized(model, ["fine"])["input_ids"].shape[0] == 1


@pytest.mark.fault(87)
def test_a_panic_that_nobody_expects(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class PanicException(BaseException):
        """As of a library written in Rust."""

    def panics(*_: object) -> None:
        raise PanicException("of its own")

    monkeypatch.setattr("hydractl.cli.app._run", panics)
    assert main(["predict"]) == 1
    assert "error: internal: PanicException: of its own" in capsys.readouterr().err
    monkeypatch.setattr("hydractl.cli.app._run", lambda *_: (_ for _ in ()).throw(UsageError("of an option")))
    assert main(["predict"]) == 2
