"""The report of an eval: what is in it, what it says of every number, and that no name can do anything in it."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hydractl.report.eval_html import best_lines, render
from hydractl.report.pictures import Picture, inline_svgs
from tests.report.examples import HOSTILE, SETS, answer_of, everything, sample, without_values
from tests.report.pages import Node, parse


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return everything()


@pytest.fixture(scope="module")
def page(document: dict[str, Any]) -> Node:
    return parse(render(answer_of(document)))


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages without pictures, where a test is about something else: drawing takes long."""
    monkeypatch.setattr("hydractl.report.eval_html.inline_svgs", lambda picture, salt: [])


def cells(table: Node) -> list[list[str]]:
    return [[cell.text() for cell in row.all("th") + row.all("td")] for row in table.all("tr")]


def svgs(node: Node) -> list[Node]:
    return [one for one in node.all("svg") if one.attrs.get("role") == "img"]


# --- what is in it ----------------------------------------------------------------------------------------------------


def test_nothing_is_loaded_and_nothing_runs(page: Node) -> None:
    assert not page.all("script") and not page.all("link") and not page.all("img") and not page.all("iframe")
    policy = next(meta for meta in page.all("meta") if "http-equiv" in meta.attrs)
    assert "default-src 'none'" in policy.attrs["content"]
    assert any(meta.attrs.get("name") == "viewport" for meta in page.all("meta"))
    for node in page.walk():
        assert not any(key.startswith("on") or key in ("src", "srcset") for key in node.attrs), node
        assert not re.search(r"url\((?!#)", " ".join(node.attrs.values()))
        assert node.attrs.get("href", "#").startswith("#")
    style = page.all("style")[0].text()
    assert (
        "url(" not in style and "@import" not in style and "@media print" in style and "prefers-color-scheme" in style
    )
    assert not any(re.search("https?:", text) for node in page.walk() for text in (node.text(), *node.attrs.values()))


def test_every_section_is_there_and_linked(page: Node) -> None:
    wanted = [
        "results",
        "difference",
        "ood",
        "roc",
        "scores",
        "reliability",
        "risk-coverage",
        "cost",
        "heads",
        "training",
        "members",
    ]
    wanted += ["diversity", "corruptions", "settings", "conventions", "provenance"]
    assert [link.attrs["href"] for link in page.all("nav")[0].all("a")] == [f"#{name}" for name in wanted]
    assert [section.attrs["id"] for section in page.all("section")] == ["summary", *wanted]


def test_every_picture_is_there(page: Node) -> None:
    models, sets = 3, len(SETS)
    counts = {name: len(svgs(page.by_id(name))) for name in ("roc", "scores", "reliability", "risk-coverage", "cost")}
    assert counts == {"roc": models, "scores": models * sets, "reliability": models, "risk-coverage": 1, "cost": 2}
    assert len(svgs(page.by_id("heads"))) == 1 + 1 + 3  # a map for each member
    assert len(svgs(page.by_id("training"))) == 2  # of the two rows that were trained
    assert len(svgs(page.by_id("diversity"))) == 2 and len(svgs(page.by_id("corruptions"))) == 3


def test_pictures_are_named_and_their_texts_are_texts(page: Node) -> None:
    """Those who hear the page are told what each picture is; whoever searches it finds what is written in one."""
    for section in ("roc", "scores", "reliability", "risk-coverage", "cost", "diversity", "corruptions"):
        for picture in svgs(page.by_id(section)):
            said = " ".join(text.text() for text in picture.all("text"))
            assert "n = 200" in said, (section, said)
            assert " over " in picture.attrs["aria-label"] or "OOD" in picture.attrs["aria-label"]
    assert svgs(page.by_id("roc"))[0].attrs["aria-label"] == "base: TPR over FPR of each OOD set"
    for n in (100, 110, 120):
        assert f"n = {n}" in page.by_id("roc").text()


def test_identifiers_are_unique_and_those_used_are_there(page: Node) -> None:
    """One page has many pictures, whose clip paths and markers must not be taken for each other's."""
    names = [node.attrs["id"] for node in page.walk() if "id" in node.attrs]
    assert len(names) == len(set(names))
    for picture in svgs(page):
        own = {node.attrs["id"] for node in picture.walk() if "id" in node.attrs}
        used = {node.attrs["href"].removeprefix("#") for node in picture.all("use")}
        used |= {
            re.findall(r"#(\w+)", node.attrs["clip-path"])[0] for node in picture.walk() if "clip-path" in node.attrs
        }
        assert used <= own


# --- what the numbers are ---------------------------------------------------------------------------------------------


def test_the_main_table_holds_and_marks_the_numbers(page: Node, document: dict[str, Any]) -> None:
    table = page.by_id("results").all("table")[0]
    found = cells(table)
    assert found[0][1] == "acc ↑" and found[0][2] == "nll ↓" and len(found) == 4
    for line, row in zip(found[1:], document["models"], strict=True):
        low, high = row["ci"]["id.accuracy"]
        assert line[:3] == [
            row["name"],
            f"{row['id']['accuracy']:.4f}{low:.4f}–{high:.4f}",
            f"{row['id']['nll']:.4f}",
        ]
    for column, (key, best) in enumerate((("accuracy", max), ("nll", min), ("brier", min), ("ece", min)), start=0):
        values = [row["id"][key] for row in document["models"]]
        marked = [line.all("td")[column].attrs.get("class", "") for line in table.all("tr")[1:]]
        assert marked.index("best") == values.index(best(values))
        assert marked.index("second") == values.index(sorted(values, reverse=best is max)[1])


def test_the_summary_names_what_was_measured_and_who_is_best(page: Node, document: dict[str, Any]) -> None:
    text = page.by_id("summary").text()
    assert "3 models were measured on 200 labelled samples of builtin:id/test" in text
    assert "letters (near OOD, n = 100); photos (far OOD, n = 110); noise (n = 120)" in text
    assert "Intervals cover 95 %, from 20 bootstrap resamples" in text
    assert "hydra was made with some of these samples: 12 of ID, 3 of letters." in text
    best = max(document["models"], key=lambda row: row["id"]["accuracy"])
    low, high = best["ci"]["id.accuracy"]
    wanted = f"Accuracy (higher is better): {best['name']} with {best['id']['accuracy']:.4f} ({low:.4f} to {high:.4f})"
    assert wanted in text
    best = min(document["models"], key=lambda row: row["id"]["nll"])
    assert f"Negative log likelihood (lower is better): {best['name']} with {best['id']['nll']:.4f}" in text


@pytest.mark.usefixtures("no_pictures")
def test_rows_that_tie_share_a_line_without_an_interval(document: dict[str, Any]) -> None:
    same = copy.deepcopy(document)
    for row in same["models"][:2]:
        row["id"]["accuracy"] = 0.999
    text = parse(render(answer_of(same))).by_id("summary").text()
    assert "Accuracy (higher is better): base and taylor with 0.9990, then hydra with 0.9900" in text


def test_ood_tables_by_set_and_by_group(page: Node, document: dict[str, Any]) -> None:
    section = page.by_id("ood")
    titles = [title.text() for title in section.all("h3")]
    assert titles == ["letters", "photos", "noise", "Mean: near", "Mean: far", "Mean: all"]
    for table, name in zip(section.all("table")[:3], SETS, strict=True):
        for line, row in zip(cells(table)[1:], document["models"], strict=True):
            assert line[2] == f"{row['ood'][name]['fpr95']:.4f}"
    assert "near OOD, n = 100" in section.text() and "far OOD, n = 110" in section.text()


@pytest.mark.long
def test_cost_is_a_ratio_to_the_single_model(
    page: Node, document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    section = page.by_id("cost")
    assert [line[3] for line in cells(section.all("table")[0])[1:]] == ["1.000", "1.000", "2.000"]
    assert "the single model, all heads" in section.text()
    other = copy.deepcopy(document)
    for row in other["models"]:
        del row["cost"]["single_macs"]
    other["models"][0]["cost"] = {"params": 1, "macs": 10**6}

    def of_cost_alone(picture: Picture, salt: str) -> list[str]:
        return inline_svgs(picture, salt) if picture.kind.startswith("cost") else []

    monkeypatch.setattr("hydractl.report.eval_html.inline_svgs", of_cost_alone)
    section = parse(render(answer_of(other))).by_id("cost")
    assert [line[3] for line in cells(section.all("table")[0])[1:]] == ["1.000", "2.000", "4.000"]
    said = [text.text() for text in svgs(section)[0].all("text")]
    assert said[said.index("mult-adds, times those of") + 1] == "base"


def test_differences_pairs_corruptions_and_settings(page: Node, document: dict[str, Any]) -> None:
    hydra = document["models"][2]
    line = cells(page.by_id("difference").all("table")[0])[2]
    found = hydra["difference"]["id.accuracy"]
    clear = found["ci"][0] > 0 or found["ci"][1] < 0
    mark = page.by_id("difference").all("table")[0].all("tr")[2].all("td")[0].attrs.get("class", "")
    assert mark == "" and line[1].startswith(f"{found['value']:+.4f}{'*' * clear}")  # bold is the best
    pairs = [row for row in cells(page.by_id("diversity").all("table")[0]) if " and " in row[2]]
    assert len(pairs) == 3 * (1 + len(SETS))
    first = hydra["diversity"]["id"]["pairs"][0]
    assert pairs[0] == ["hydra", "ID", "0 and 1", f"{first['mi']:.4f}", f"{first['disagreement']:.4f}"]
    corruptions = page.by_id("corruptions")
    assert [title.text() for title in corruptions.all("h3")] == ["gaussian_noise", "fog", "Mean over the corruptions"]
    assert cells(corruptions.all("table")[1])[0][1:4] == ["acc 1 ↑", "acc 2 ↑", "acc 3 ↑"]
    settings = page.by_id("settings").text()
    assert "temperature 1.2500; fitted on builtin:val/train (n = 100)" in settings
    assert "91.0 % of the sets hold the label, wanted 90.0 %; mean size 1.34 classes, 2.0 % are empty" in settings
    assert "msp at least -0.6000 (rule ood:0.95) flags 20.0 % of ID, 90.0 % of letters" in settings


def test_provenance_is_in_full(page: Node, document: dict[str, Any]) -> None:
    text = page.by_id("provenance").text()
    for row in document["models"]:
        assert row["sha256"] in text
    for entry in document["test"].values():
        assert entry["fingerprint"] in text and entry["spec"] in text
    assert "rounds 20" in text and "hydractl.eval/2" in text
    assert "Share of samples whose class of highest p" in page.by_id("conventions").text()


# --- every document ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_pictures")
def test_one_bare_row() -> None:
    page = parse(render(answer_of({"schema": "hydractl.eval/2", "models": [{"name": "one", "id": {"n": 3}}]})))
    assert "The model one was measured on 3 samples without labels" in page.by_id("summary").text()
    assert [section.attrs["id"] for section in page.all("section")] == ["summary", "results", "provenance"]
    bare = parse(render(answer_of(sample({"one": 1}, sets={}, rounds=0))))
    assert "No out-of-distribution data was given." in bare.by_id("summary").text()
    sections = {section.attrs["id"] for section in bare.all("section")}
    assert {"reliability", "risk-coverage", "heads"} <= sections and not sections & {
        "ood",
        "roc",
        "scores",
        "diversity",
    }
    assert not bare.all("td", "best") and "auroc" not in bare.by_id("results").text()


@pytest.mark.usefixtures("no_pictures")
def test_null_everywhere_is_a_dash(document: dict[str, Any]) -> None:
    page = parse(render(answer_of(without_values(document))))
    found = cells(page.by_id("results").all("table")[0])
    assert found[1:] == [[row["name"], *["-"] * 11] for row in document["models"]]
    assert not page.all("td", "best") and not re.search(r"\b(None|nan|inf)\b", page.text())


@pytest.mark.long
def test_hostile_names_are_only_texts() -> None:
    found = sample(dict.fromkeys(HOSTILE, 2), sets={"letters": "near"}, rounds=0)
    for part in ("id", "ood", "diversity"):
        assert part in found["models"][0]
    found["conventions"] = {"<b>": "</style><script>alert(2)</script>", "max_length": {HOSTILE[0]: 3}}
    found["test"]["id"]["spec"] = "folder/<img src=x>\u202e"
    data = render(answer_of(found))
    page = parse(data)
    assert not page.all("script") and not page.all("img")
    text = data.decode()
    assert "\u202e" not in text and "\x1b" not in text and "\x00" not in text and "\u2066" not in text
    names = [line[0] for line in cells(page.by_id("results").all("table")[0])[1:]]
    assert names[0] == HOSTILE[0] and names[1] == "a\\u202egnp.exe\\u2066" and len(set(names)) == len(HOSTILE)
    assert max(map(len, names)) <= 100
    assert "x" * 10_000 in page.by_id("provenance").text()  # in full, once
    assert len(data) < 1_500_000


@pytest.mark.long
def test_same_document_same_bytes(tmp_path: Path) -> None:
    """Also in another process with another order of sets."""
    document = sample({"one": 1, "two": 2}, sets={"letters": "near"}, n=60, rounds=0)
    (tmp_path / "eval.json").write_text(json.dumps(document))
    code = (
        "import hashlib, sys; from hydractl.files.eval_answer import EvalAnswer; "
        "from hydractl.report.eval_html import render; "
        "print(hashlib.sha256(render(EvalAnswer.read(sys.argv[1]))).hexdigest())"
    )
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "eval.json")],
        capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path.cwd())},
    )  # fmt: skip
    assert run.stdout == hashlib.sha256(render(answer_of(document))).hexdigest() + "\n"


def test_the_summary_judges_by_paired_differences() -> None:
    """Intervals of two rows may overlap where the samples are the same and the difference is significant."""
    rows: list[dict[str, Any]] = [
        {"name": "base", "id": {"n": 9, "accuracy": 0.90}, "ci": {"id.accuracy": [0.85, 0.95]}},
        {"name": "hydra", "id": {"n": 9, "accuracy": 0.93}, "ci": {"id.accuracy": [0.88, 0.98]}},
    ]
    rows[1]["difference"] = {"id.accuracy": {"value": 0.03, "ci": [0.01, 0.05]}}
    (_, text) = best_lines(answer_of({"models": rows}))[0]
    assert text.endswith("; significantly different from base (paired difference +0.0300, +0.0100 to +0.0500).")
    rows[1]["difference"]["id.accuracy"]["ci"] = [-0.01, 0.07]
    assert "; not significantly different from base (" in best_lines(answer_of({"models": rows}))[0][1]
    rows[1]["id"]["accuracy"], rows[1]["difference"]["id.accuracy"] = 0.87, {"value": -0.03, "ci": [-0.05, -0.01]}
    assert best_lines(answer_of({"models": rows}))[0][1].endswith(
        "; paired differences to base are significant for 1 of 1 others."
    )
