"""The report of an eval: what is in it, what it says of every number, and that no name can do anything in it."""

from __future__ import annotations

import base64
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

from hydractl.evaluation.answer import sentences
from hydractl.files.bench_answer import BenchRow
from hydractl.files.model_records import MeasuredThreshold
from hydractl.files.study_answer import NextCommandRecord
from hydractl.report.eval_html import render
from hydractl.report.study_figures import glance, in_brief, legend, own_scores_table, study_table
from tests.report.examples import (
    HOSTILE,
    SETS,
    answer_of,
    everything,
    sample,
    study_of,
    with_a_row_ruled_out,
    without_values,
)
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
    monkeypatch.setattr("hydractl.report.eval_html.page_images", lambda _: [])


def cells(table: Node) -> list[list[str]]:
    return [[cell.text() for cell in row.all("th") + row.all("td")] for row in table.all("tr")]


def svgs(node: Node) -> list[Node]:
    """The pictures below a node, each parsed from the file in its address."""
    files = [image.attrs["src"].partition("base64,")[2] for image in node.all("img")]
    return [parse(base64.b64decode(file)) for file in files]


# --- what is in it ----------------------------------------------------------------------------------------------------


def test_nothing_is_loaded_and_nothing_runs(page: Node) -> None:
    assert not page.all("script") and not page.all("link") and not page.all("iframe")
    policy = next(meta for meta in page.all("meta") if "http-equiv" in meta.attrs)
    assert "default-src 'none'; img-src data:;" in policy.attrs["content"]
    assert any(meta.attrs.get("name") == "viewport" for meta in page.all("meta"))
    for node in page.walk():
        assert not any(key.startswith("on") or key == "srcset" for key in node.attrs), node
        assert node.attrs.get("src", "data:image/svg+xml;base64,").startswith("data:image/svg+xml;base64,")
        assert not re.search(r"url\((?!#)", " ".join(node.attrs.values()))
        assert node.attrs.get("href", "#").startswith("#")
    style = page.all("style")[0].text()
    assert (
        "url(" not in style and "@import" not in style and "@media print" in style and "prefers-color-scheme" in style
    )
    assert not any(re.search("https?:", text) for node in page.walk() for text in (node.text(), *node.attrs.values()))


OPEN = ["overview", "results", "reliability", "scores", "summary"]
CLOSED = ["heads", "further", "difference", "ood", "members", "corruptions", "settings"]
CLOSED += ["conventions", "provenance"]


def test_every_question_has_a_section_and_the_rest_is_closed(page: Node) -> None:
    assert [section.attrs["id"] for section in page.all("section")] == OPEN
    assert [section.attrs["id"] for section in page.all("details")] == CLOSED
    assert not any("open" in section.attrs for section in page.all("details"))


def test_every_picture_is_there_and_nothing_is_drawn_twice(page: Node) -> None:
    counts = {name: len(svgs(page.by_id(name))) for name in OPEN + CLOSED}
    assert {name: count for name, count in counts.items() if count} == {
        "overview": 2,
        "reliability": 2,
        "scores": len(SETS),
    }
    tables = [tuple(map(tuple, cells(table))) for table in page.all("table")]
    assert len(set(tables)) == len(tables)


def test_pictures_are_named_and_their_texts_are_texts(page: Node) -> None:
    """Those who hear the page are told what each picture is."""
    said = {}
    for section in ("overview", "scores", "reliability"):
        said[section] = " ".join(text.text() for picture in svgs(page.by_id(section)) for text in picture.all("text"))
        assert "n = 200" in said[section], (section, said)
        for image in page.by_id(section).all("img"):
            assert " over " in image.attrs["alt"] or "OOD" in image.attrs["alt"]
    assert page.by_id("overview").all("img")[0].attrs["alt"] == "OOD detection against cost: AUROC over mult-adds"
    for n in (100, 110, 120):
        assert f"n = {n}" in said["scores"]


def test_identifiers_are_unique(page: Node) -> None:
    names = [node.attrs["id"] for node in page.walk() if "id" in node.attrs]
    assert len(names) == len(set(names))


# --- what the numbers are ---------------------------------------------------------------------------------------------


def test_the_table_holds_and_marks_the_numbers(page: Node, document: dict[str, Any]) -> None:
    table = page.by_id("results").all("table")[0]
    found = cells(table)
    heads = ["model", "acc ↑", "NLL ↓", "ECE ↓", "AUROC ↑", "FPR95 ↓", "mult-adds ratio", "mult-adds", "parameters"]
    assert found[0] == heads and len(found) == 4
    for line, row in zip(found[1:], document["models"], strict=True):
        low, high = row["ci"]["id.accuracy"]
        assert line[0].startswith(row["name"]) and "heads kept: " in line[0]
        ratio = row["cost"]["macs"] / row["cost"]["single_macs"]
        assert line[1:3] == [f"{row['id']['accuracy']:.4f}{low:.4f}–{high:.4f}", f"{row['id']['nll']:.4f}"]
        cost = row["cost"]
        assert line[6:] == [f"{ratio:.2f}", f"{cost['macs'] / 10**6:.2f} M", f"{cost['params'] / 1000:.2f} K"]
    for column, (key, best) in enumerate((("accuracy", max), ("nll", min), ("ece", min)), start=0):
        values = [row["id"][key] for row in document["models"]]
        marked = [line.all("td")[column].attrs.get("class", "") for line in table.all("tr")[1:]]
        assert marked.index("best") == values.index(best(values))
    text = page.by_id("results").text()
    assert "NLL: negative log likelihood" in text and "the model with all heads" in text


def test_the_metrics_that_the_table_leaves_out_are_below(page: Node, document: dict[str, Any]) -> None:
    found = cells(page.by_id("further").all("table")[0])
    known = ("Brier ↓", "AECE ↓", "AURC ↓", "AUPR ↑", "mi", "disagr")
    assert [name for name in found[0] if name in known] == [*known]
    assert [line[1] for line in found[1:]] == [f"{row['id']['brier']:.4f}" for row in document["models"]]


@pytest.mark.usefixtures("no_pictures")
def test_scores_are_explained_where_they_stand(document: dict[str, Any]) -> None:
    explained = copy.deepcopy(document)
    explained["conventions"]["ood_scores"] = {"msp": "OOD score: minus the highest p.", "knn": "not of a row"}
    text = parse(render(answer_of(explained))).by_id("results").text()
    assert "OOD score msp: minus the highest p." in text and "not of a row" not in text


def test_the_summary_names_what_was_measured(page: Node) -> None:
    summary = page.by_id("summary")
    assert cells(summary.all("table")[0])[1:] == [
        ["ID", "builtin:id/test", "in distribution", "n = 200"],
        ["letters", "builtin:letters/test", "near", "n = 100"],
        ["photos", "builtin:photos/test", "far", "n = 110"],
        ["noise", "builtin:noise/test", "-", "n = 120"],
    ]
    assert "Intervals cover 95 %, from 20 bootstrap resamples" in summary.text()
    assert "hydra was made with some of these samples: 12 of ID, 3 of letters." in summary.text()


@pytest.mark.usefixtures("no_pictures")
def test_a_study_begins_with_its_verdict(document: dict[str, Any]) -> None:
    page = parse(render(answer_of(document), study_of(document, used="hydra")))
    verdict = page.by_id("verdict")
    assert page.all("section")[0] is verdict and verdict.all("p", "headline")[0].text() == "It helps."
    assert [line.text() for line in verdict.all("details")[0].all("p")] == ["Not by much."]
    brief = [line.text() for line in verdict.all("p") if line not in verdict.all("details")[0].all("p")]
    assert brief[-1].startswith("How sure: tested on 200 of ID, ")
    single, _, hydra = document["models"]
    found = cells(verdict.all("table")[0])
    assert found[0] == ["test data", "now (MSP)", "hydra, msp", "difference"]
    auroc = [f"{row['ood_avg']['auroc']:.3f}" for row in (single, hydra)]
    assert found[1] == ["OOD AUROC", *auroc, "better, +0.1000+0.0500 to +0.1500"]
    assert found[4:] == [["mult-adds ratio", "1.00", "2.00", ""]]  # neither time nor files were measured
    terms = [term.text() for term in page.by_id("names").all("dt")]
    figures = ["MSP", "ID", "OOD", "AUROC", "FPR95", "NLL", "ECE", "mult-adds"]
    assert terms == ["taylor", *figures]  # base and hydra are no names of a study
    assert [section.attrs["id"] for section in page.all("section")] == ["verdict", "overview", "results", "summary"]
    assert not verdict.all("code")


@pytest.mark.usefixtures("no_pictures")
def test_the_verdict_ends_with_what_to_do_next(document: dict[str, Any]) -> None:
    study = study_of(document, used="hydra")
    steps = [NextCommandRecord(purpose="predict", command=["predict", "my study/best.st"])]
    page = parse(render(answer_of(document), study.model_copy(update={"next": steps})))
    (command,) = page.by_id("next").all("code")
    assert command.text().endswith("predict 'my study/best.st'")
    (purpose,) = page.by_id("next").all("dt")
    assert purpose.text().startswith("predict: answers and OOD flags of best.st")


def test_time_memory_and_files_stand_beside_the_cost_where_they_were_measured(document: dict[str, Any]) -> None:
    study = study_of(document, used="hydra")
    single = study.rows[0].name
    timed = [
        BenchRow.partly(model=single, batch_size=1, peak_memory_bytes=None),
        BenchRow.partly(model="best", batch_size=1, ratio=1.5, ratio_ci=[1.4, 1.6], peak_memory_bytes=None),
        BenchRow.partly(model=single, batch_size=8, peak_memory_bytes=4000),
        BenchRow.partly(model="best", batch_size=8, ratio=1.75, ratio_ci=[1.7, 1.8], peak_memory_bytes=5000),
    ]
    files = {
        "model": study.model.model_copy(update={"bytes": 1500}),
        "use": study.use.model_copy(update={"bytes": 2500}),
    }
    table = glance(study.model_copy(update={"timed": timed, **files}))
    assert table is not None
    assert [[cell.text for cell in line] for line in table.rows[-4:]] == [
        ["time ratio, batch 1", "1.00", "1.50", ""],
        ["time ratio, batch 8", "1.00", "1.75", ""],
        ["memory ratio, batch 8", "1.00", "1.25", ""],
        ["file", "1.50 KB", "2.50 KB", ""],
    ]


def test_what_thresholds_flag_stands_beside_each_other_where_both_were_measured(document: dict[str, Any]) -> None:
    study = study_of(document, used="hydra")
    now = MeasuredThreshold(id_flagged=0.05, ood_flagged={"letters": 0.1, "photos": 0.3, "noise": None})
    best = MeasuredThreshold(id_flagged=0.028, ood_flagged={"letters": 0.5, "photos": 1.0, "noise": None})
    of_best = {"use": study.use.model_copy(update={"threshold": best})}
    for baseline, expected in (
        (now, [["flagged of ID", "0.050", "0.028", ""], ["flagged of OOD", "0.200", "0.750", ""]]),
        (None, []),
    ):
        table = glance(study.model_copy(update={**of_best, "baseline_threshold": baseline}))
        assert table is not None
        lines = [[cell.text for cell in line] for line in table.rows]
        assert [line for line in lines if line[0].startswith("flagged")] == expected


def test_what_is_flagged_and_how_sure_it_is_come_with_their_numbers_of_samples(document: dict[str, Any]) -> None:
    study = study_of(document, used="hydra")
    threshold = MeasuredThreshold(value=1.0, rule="id:0.05", id_flagged=0.028, ood_flagged={"letters": 0.5})
    updated = {
        "use": study.use.model_copy(update={"threshold": threshold}),
        "choice": study.choice.model_copy(update={"n": 150}),
        "baseline_threshold": MeasuredThreshold(id_flagged=0.089, ood_flagged={"letters": 0.125}),
    }
    *_, flagged, how_sure = in_brief(study.model_copy(update=updated))
    assert flagged == (
        "best.st, this model with its score and a threshold, flags 2.8 % of ID samples (8.9 % by MSP), 50.0 % of "
        "letters (12.5 % by MSP). A threshold was set to id:0.05, a share of 150 ID samples of --val: the fewer they "
        "are, the more the share of other samples differs by chance. False alarms (FPR95) are those of other "
        "thresholds, which find 95 % of OOD."
    )
    del updated["baseline_threshold"]
    assert "flags 2.8 % of ID samples, 50.0 % of letters. A" in in_brief(study.model_copy(update=updated))[-2]
    assert how_sure == (
        "How sure: tested on 200 of ID, 100 of letters, 110 of photos, 120 of noise. Resampled validation data (150 of "
        "ID) choose the same model in 100 % of cases, the same score in 100 %. -"
    )


@pytest.mark.usefixtures("no_pictures")
def test_figures_on_validation_data_stand_apart_from_those_on_test_data(document: dict[str, Any]) -> None:
    study = with_a_row_ruled_out(study_of(document, used="hydra"))
    page = parse(render(answer_of(document), study))
    heads, line = cells(page.by_id("ruled-out").all("table")[0])
    auroc = f"{study.ruled_out[0].validation.ood_avg.auroc:.3f}"
    assert line[0] == "late" and heads[2] == "validation OOD AUROC" and line[2] == auroc
    assert not any(row[0].text.startswith("late") for row in study_table(study).rows)


@pytest.mark.usefixtures("no_pictures")
def test_results_of_a_study_begin_with_the_model_as_it_is_and_name_the_one_to_use(document: dict[str, Any]) -> None:
    study = study_of(document, used="taylor")
    # Figures of its own, as MSP and no temperature give them.
    means = study.baseline.ood_avg.model_copy(update={"auroc": 0.123})
    baseline = study.baseline.model_copy(update={"ood_avg": means})
    study = study.model_copy(update={"baseline": baseline, "baseline_ci": {"ood_avg.auroc": [0.1, 0.15]}})
    page = parse(render(answer_of(document), study))
    heads, now, *lines = cells(page.by_id("results").all("table")[0])
    single = document["models"][0]
    auroc = heads.index("AUROC ↑")
    assert now[0].startswith("single, MSP (now)") and now[auroc] == "0.12300.1000–0.1500"
    assert lines[0][auroc].startswith(f"{single['ood_avg']['auroc']:.4f}")
    assert heads[-3:] == ["mult-adds ratio", "mult-adds", "parameters"] and now[-3:] == lines[0][-3:]
    assert ["(recommended)" in line[0] for line in lines] == [False, True, False]
    text = page.by_id("results").text()
    assert not page.all("td", "best") and "Bold" not in text
    assert f"All with the score {study.common_score}, the first line with MSP." in text


@pytest.mark.usefixtures("no_pictures")
def test_a_page_explains_no_name_that_stands_in_closed_details_alone(document: dict[str, Any]) -> None:
    study = with_a_row_ruled_out(study_of(document, used="hydra"))
    (late,) = study.ruled_out
    study = study.model_copy(update={"ruled_out": [late.model_copy(update={"name": "whole-late@6"})]})
    page = parse(render(answer_of(document), study))
    assert "whole-late@N" not in [term.text() for term in page.by_id("names").all("dt")]
    assert "whole-late@N" in legend(study, study.ruled_out)


@pytest.mark.usefixtures("no_pictures")
def test_models_with_a_score_of_their_own_are_in_a_table_of_these(document: dict[str, Any]) -> None:
    study = study_of(document, used="hydra")
    other = study.rows[1].model_copy(update={"score": "knn"})
    rows = own_scores_table(study.model_copy(update={"rows": [study.rows[0], other, study.rows[2]]})).rows
    assert [[cell.text for cell in row[:2]] for row in rows] == [["taylor", "knn"]]
    assert not own_scores_table(study).rows


@pytest.mark.usefixtures("no_pictures")
def test_no_figure_of_a_study_is_compared_with_itself(document: dict[str, Any]) -> None:
    page = parse(render(answer_of(document), study_of(document, used="base")))
    assert not page.by_id("verdict").all("table")


def test_what_another_score_cannot_change_is_the_same(document: dict[str, Any]) -> None:
    study = study_of(document, used="base")
    single = study.rows[0].model_copy(update={"score": "vim"})
    table = glance(study.model_copy(update={"rows": [single, *study.rows[1:]]}))
    assert table is not None
    word_by_title = {line[0].text: line[-1].text for line in table.rows}
    assert word_by_title["OOD AUROC"] == "better, +0.1000" and word_by_title["accuracy"] == "the same"


def test_ood_tables_by_set_and_by_group(page: Node, document: dict[str, Any]) -> None:
    sets, means = page.by_id("ood").all("table")
    wanted = [
        [row["name"], name, entry["group"] or "-", str(entry["n"])]
        for name in SETS
        for row in document["models"]
        for entry in [row["ood"][name]]
    ]
    assert [line[:4] for line in cells(sets)[1:]] == wanted
    for line, row in zip(cells(means)[1:], document["models"], strict=True):
        assert line[2] == f"{row['near_avg']['fpr95']:.4f}" and line[5] == f"{row['far_avg']['fpr95']:.4f}"


def test_heads_are_shown_one_by_one_for_members_that_were_pruned(page: Node, document: dict[str, Any]) -> None:
    found = cells(page.by_id("heads").all("table")[0])
    assert found[0] == ["site", *(f"hydra, member {member}" for member in range(3))]
    for line, site in zip(found[1:], document["models"][2]["heads"], strict=True):
        marks = ["".join("■" if head in kept else "·" for head in range(8)) for kept in site["kept"]]
        assert line == [site["site"], *marks]


@pytest.mark.usefixtures("no_pictures")
def test_sites_of_two_towers_are_named_apart(document: dict[str, Any]) -> None:
    clip = copy.deepcopy(document)
    site = {"site": "resblocks.1.attn", "heads": 4, "kept": [[0, 1]]}
    clip["models"][0]["heads"] = [{**site, "tower": "visual"}, {**site, "tower": "text"}]
    del clip["models"][2]["heads"]
    found = cells(parse(render(answer_of(clip))).by_id("heads").all("table")[0])
    assert [line[0] for line in found[1:]] == ["visual: resblocks.1.attn", "text: resblocks.1.attn"]


def test_differences_corruptions_and_settings(page: Node, document: dict[str, Any]) -> None:
    hydra = document["models"][2]
    line = cells(page.by_id("difference").all("table")[0])[2]
    found = hydra["difference"]["id.accuracy"]
    clear = found["ci"][0] > 0 or found["ci"][1] < 0
    mark = page.by_id("difference").all("table")[0].all("tr")[2].all("td")[0].attrs.get("class", "")
    assert mark == "" and line[1].startswith(f"{found['value']:+.4f}{'*' * clear}")  # bold is the best
    accuracies, means = page.by_id("corruptions").all("table")
    assert [line[:2] for line in cells(accuracies)[5:]] == [["hydra", "gaussian_noise"], ["hydra", "fog"]]
    assert cells(means)[0][1:4] == ["acc 1 ↑", "acc 2 ↑", "acc 3 ↑"]
    settings = page.by_id("settings").text()
    assert "temperature 1.2500; fitted on builtin:val/train (n = 100)" in settings
    assert "91.0 % of the sets hold the label, wanted 90.0 %; mean size 1.34 classes, 2.0 % are empty" in settings
    assert "msp at least -0.600000 (rule ood:0.95) flags 20.0 % of ID, 90.0 % of letters" in settings


@pytest.mark.fault(111)
def test_nothing_is_said_twice_and_no_markup_is_shown(page: Node) -> None:
    """Conventions come from docstrings, and a calibration by a temperature has it as its kind, too."""
    assert "temperature; temperature" not in page.by_id("settings").text()
    assert not any("``" in sentence for sentence in sentences().values())


def test_provenance_is_in_full(page: Node, document: dict[str, Any]) -> None:
    text = page.by_id("provenance").text()
    for row in document["models"]:
        assert row["sha256"] in text
    for entry in document["test"].values():
        assert entry["fingerprint"] in text
    assert "rounds 20" in text and "hydractl.eval/2" in text
    assert "Share of samples whose class of highest p" in page.by_id("conventions").text()


# --- every document ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_pictures")
def test_one_bare_row() -> None:
    page = parse(render(answer_of({"schema": "hydractl.eval/2", "models": [{"name": "one", "id": {"n": 3}}]})))
    assert cells(page.by_id("summary").all("table")[0])[1:] == [["ID", "-", "in distribution", "n = 3"]]
    assert [section.attrs["id"] for section in page.all("section")] == ["results", "summary"]
    assert [section.attrs["id"] for section in page.all("details")] == ["further", "provenance"]
    bare = parse(render(answer_of(sample({"one": 1}, sets={}, rounds=0))))
    sections = {section.attrs["id"] for section in bare.all("section")}
    assert sections == {"results", "reliability", "summary"}
    assert not bare.all("td", "best") and "AUROC" not in bare.by_id("results").text()


@pytest.mark.usefixtures("no_pictures")
def test_null_everywhere_is_a_dash(document: dict[str, Any]) -> None:
    page = parse(render(answer_of(without_values(document))))
    found = cells(page.by_id("results").all("table")[0])
    assert [line[1:] for line in found[1:]] == [["-"] * 8] * 3
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
    assert not page.all("script")
    for image in page.all("img"):
        assert image.attrs.keys() == {"src", "alt"} and image.attrs["src"].startswith("data:image/svg+xml;base64,")
    for picture in svgs(page):
        assert not picture.all("script") and not picture.all("img")
    text = data.decode()
    assert "\u202e" not in text and "\x1b" not in text and "\x00" not in text and "\u2066" not in text
    names = [name.text() for name in page.by_id("results").all("bdi")]
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
