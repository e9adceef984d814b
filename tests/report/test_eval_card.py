"""The model card: read back by the library whose form it has."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard

from hydractl.report.eval_card import plain, render_card
from tests.report.examples import HOSTILE, answer_of, everything, sample, without_values


def card(document: dict[str, Any], index: int = -1) -> ModelCard:
    return ModelCard(render_card(answer_of(document), index).decode("utf-8"))


@pytest.mark.long
def test_the_hubs_library_reads_every_number() -> None:
    document = everything()
    row = document["models"][2]
    read = card(document)
    results = read.data.eval_results
    values = {(one.dataset_name, one.metric_type): one.metric_value for one in results}
    assert values["builtin:id/test", "accuracy"] == row["id"]["accuracy"]
    assert values["builtin:id/test", "nll"] == row["id"]["nll"]
    for name in ("letters", "photos", "noise"):
        assert values[name, "roc_auc"] == row["ood"][name]["auroc"]
        assert values[name, "fpr95"] == row["ood"][name]["fpr95"]
    assert len(results) == 6 + 3 * 3 and len({id(one) for one in results}) == 15
    assert {one.task_type for one in results} == {"image-classification"}
    assert read.data.model_name == "hydra" and read.data.get("library_name") == "hydractl"
    assert "ensemble" in read.data.tags


def test_the_text_says_the_same() -> None:
    document = everything()
    row = document["models"][2]
    text = card(document).text
    assert text.lstrip().startswith("# hydra") and "An ensemble of 3 members; heads kept:" in text
    kept = [sum(len(site["kept"][m]) for site in row["heads"]) for m in range(3)]
    assert f"heads kept: {kept[0]} / {kept[1]} / {kept[2]} of 48." in text
    low, high = row["ci"]["id.accuracy"]
    assert f"| Accuracy | {row['id']['accuracy']:.4f} | {low:.4f} to {high:.4f} | higher |" in text
    low, high = row["ci"]["ood.photos.auroc"]
    found = row["ood"]["photos"]
    shown = f"| photos | far | 110 | {found['auroc']:.4f} ({low:.4f} to {high:.4f}) | {found['fpr95']:.4f} | "
    assert shown in text
    assert "made with some of the samples it was measured on: 12 of ID, 3 of letters." in text
    assert row["sha256"] in text and document["test"]["id"]["fingerprint"] in text


def test_any_row_and_the_same_bytes() -> None:
    document = everything()
    assert card(document, 0).data.model_name == "base"
    assert "A single model; heads kept: 48 of 48." in card(document, 0).text
    assert render_card(answer_of(document), 1) == render_card(answer_of(copy.deepcopy(document)), 1)


@pytest.mark.parametrize(
    ("conventions", "task"),
    [
        ({"max_length": {"one": 128}}, "text-classification"),
        ({"prompt": {"one": ["a {label}"]}, "max_length": {"one": 77}}, "zero-shot-image-classification"),
        ({"max_length": {"another": 128}}, "image-classification"),
    ],
)
def test_the_task_is_what_the_row_reads(conventions: dict[str, Any], task: str) -> None:
    document = sample({"one": 1}, rounds=0)
    document["conventions"].update(conventions)
    assert card(document).data.pipeline_tag == task


@pytest.mark.parametrize(
    ("spec", "name", "kind"),
    [
        ("/home/someone/secret/test.npz", "test.npz", "test.npz"),
        ("folder/of classes/", "of classes", "of-classes"),
        ("hf:org/set/plain/test", "hf:org/set/plain/test", "org/set"),
        ("texts.tsv?text=a&label=b", "texts.tsv", "texts.tsv"),
    ],
)
def test_data_are_named_without_their_folder(spec: str, name: str, kind: str) -> None:
    document = sample({"one": 1}, sets={}, rounds=0)
    document["test"]["id"]["spec"] = spec
    result = card(document).data.eval_results[0]
    assert (result.dataset_name, result.dataset_type) == (name, kind)
    assert "secret" not in render_card(answer_of(document), 0).decode()


def test_sets_of_one_name_stay_apart() -> None:
    """The Hub's form tells results apart by task and data set: two files of one name would become one result."""
    document = sample({"one": 1}, rounds=0)
    for place, entry in document["test"].items():
        entry["spec"] = f"{place}/test.npz"
    results = card(document).data.eval_results
    values = {(one.dataset_name, one.metric_type): one.metric_value for one in results}
    assert len(values) == len(results) == 6 + 3 * 3
    assert values["photos", "roc_auc"] == document["models"][0]["ood"]["photos"]["auroc"]


def test_null_and_bare_rows_have_no_results() -> None:
    nothing = card(without_values(everything()))
    assert nothing.data.eval_results is None and "| Accuracy | - |" in nothing.text
    bare = render_card(answer_of({"models": [{"name": "one", "id": {"n": 3}}]}), 0).decode()
    assert "model-index" not in bare and "# one" in bare


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_only_texts(name: str) -> None:
    document = sample({name: 2}, rounds=0)
    document["conventions"]["| <b>"] = "</b>\n---\n# heading"
    text = render_card(answer_of(document), 0).decode()
    front, body = text.removeprefix("---\n").split("\n---\n", 1)
    assert yaml.safe_load(front)["model-index"][0]["name"][:5] == name[:5].replace("\u202e", "\\u202e")[:5]
    assert "<script" not in body and "<img" not in body and "\u202e" not in text and "\x1b" not in text
    assert not any(line.startswith("# heading") for line in body.splitlines())
    cells = {line.replace("\\|", "").count("|") for line in body.splitlines() if line.startswith("| ")}
    assert cells <= {4, 5, 8}


def test_plain() -> None:
    assert plain("a|b *c* <d> `e` $f$ [g](h) #i &") == r"a\|b \*c\* &lt;d&gt; \`e\` \$f\$ \[g\](h) \#i &amp;"
    assert plain("two\nlines") == "two\\\\u000alines"
