"""Pushing to the Hub and opening from it, against a server that speaks its protocol."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import torch
import yaml
from huggingface_hub import ModelCard

import hydractl
from hydractl.cli.app import main
from hydractl.errors import InputError, OutputError, UsageError
from hydractl.families.reading import checkpoint_on_hub
from hydractl.files.checkpoint import sha256_file
from tests.fake_hub import Hub, serving
from tests.pico import SMALL
from tests.spread import marked_long, marked_release

REPO = "me/hydra-vit"
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # between two libraries


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a whole model, made once."""
    file = tmp_path_factory.mktemp("vit") / "vit.st"
    hydractl.save(hydractl.open(f"timm:vit_tiny_patch16_224?{SMALL}"), file)
    return file


@pytest.fixture
def hub(vit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving() as (hub, address):
        settings = {"ENDPOINT": address, "HF_HUB_CACHE": str(tmp_path / "cache"), "HF_HUB_DISABLE_XET": True}
        settings["HUGGINGFACE_CO_URL_TEMPLATE"] = address + "/{repo_id}/resolve/{revision}/{filename}"
        for name, value in {**settings, "HF_HUB_OFFLINE": False}.items():
            monkeypatch.setattr(huggingface_hub.constants, name, value)
        monkeypatch.setenv("HF_TOKEN", "hf_of_a_test")
        huggingface_hub.close_session()
        monkeypatch.chdir(tmp_path)
        shutil.copy(vit, "vit.st")
        yield hub
    huggingface_hub.close_session()


def test_a_checkpoint_there_and_back(hub: Hub) -> None:
    made = hydractl.prune("vit.st", method="magnitude", keep=2, output="a.st")
    document = hydractl.push(made, REPO, license="apache-2.0", base_model="timm/vit_tiny", message="First")
    assert document["uploaded"] == ["README.md", "a.st"] and document["commit"] == hub.sha(REPO)
    assert hub.messages == ["First"] and len(hub.commits[REPO]) == 2
    assert list(hub.large.values()) == [Path("a.st").read_bytes()]
    card = ModelCard(hub.commits[REPO][-1]["README.md"].decode())
    assert (card.data.license, card.data.base_model) == ("apache-2.0", "timm/vit_tiny")
    assert card.data.pipeline_tag == "image-classification"
    assert f'hydractl.load("hf:{REPO}")' in card.text and "6 of 9" in card.text
    for name in (REPO, f"{REPO}@{hub.sha(REPO)}", f"{REPO}/a.st", f"{REPO}@{hub.sha(REPO)}/a.st"):
        assert hydractl.open(f"hf:{name}").source.sha256 == sha256_file("a.st"), name
    pulled, own = hydractl.load(f"hf:{REPO}", device="cpu"), hydractl.load("a.st", device="cpu")
    inputs = own.example_inputs(2)
    assert torch.equal(pulled(inputs), own(inputs))


@pytest.mark.long
def test_by_the_names_of_huggingface_hub(hub: Hub) -> None:
    members = [hydractl.prune("vit.st", method="random", keep=2, seed=seed) for seed in range(2)]
    hydra = hydractl.fuse(members, output="h.st")
    pinned = hydra.push_to_hub(REPO, commit_message="First", license="apache-2.0")
    assert hub.messages == ["First"] and pinned == f"hf:{REPO}@{hub.sha(REPO)}"
    model = hydractl.HydraModel.from_pretrained(REPO, device="cpu")
    own = hydractl.load(hydra, device="cpu")
    inputs = own.example_inputs(2)
    assert isinstance(model, torch.nn.Module) and torch.equal(model(inputs), own(inputs))
    # A module of several members is pushed as the file it was loaded from.
    again = model.push_to_hub("me/copy", private=True)
    assert hydractl.Model.from_pretrained("me/copy", revision=again[-40:]).source.sha256 == sha256_file("h.st")
    with torch.no_grad():
        next(model.parameters()).add_(1)
    with pytest.raises(UsageError, match="several members is no longer what a file holds"):
        model.push_to_hub(REPO)
    # One of a single member is pushed with the weights it has now.
    single = hydractl.HydraModel.from_pretrained("vit.st", device="cpu")
    with torch.no_grad():
        next(single.parameters()).add_(1)
    trained = hydractl.load(single.push_to_hub("me/trained"), device="cpu")
    assert torch.equal(trained(inputs), single(inputs)) and not torch.equal(own(inputs), single(inputs))
    hub.fails_at = "commit"
    with pytest.raises(InputError, match="cannot push to me/broken"):
        hydra.push_to_hub("me/broken")
    assert [name for name, _ in hub.files("me/broken")] == [".gitattributes"]
    with pytest.raises(UsageError, match=r"revision 'main': vit.st is on this machine"):
        hydractl.Model.from_pretrained("vit.st", revision="main")


def test_a_known_repository_is_not_asked_for_its_files_again(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.commits["me/published"] = [{"config.json": b"{}"}]
    assert checkpoint_on_hub("me/published") is None
    huggingface_hub.hf_hub_download("me/published", "config.json")
    hub.fails_at = "api"
    assert checkpoint_on_hub("me/published") is None


def test_what_is_there_already_is_not_uploaded_again_nor_replaced(hub: Hub) -> None:
    first = hydractl.push("vit.st", REPO)
    assert hydractl.push("vit.st", REPO)["uploaded"] == [] and len(hub.commits[REPO]) == 2
    before = hub.commits[REPO][-1]
    Path("b").mkdir()
    hydractl.prune("vit.st", method="magnitude", keep=2, output="b/vit.st")
    with pytest.raises(OutputError, match=r"another README.md and another vit.st"):
        hydractl.push("b/vit.st", REPO)
    assert hub.commits[REPO][-1] is before
    again = hydractl.push("b/vit.st", REPO, force=True)
    assert again["uploaded"] == ["README.md", "vit.st"]
    for pinned, file in ((first["pinned"], "vit.st"), (again["pinned"], "b/vit.st")):
        assert hydractl.open(pinned).source.sha256 == sha256_file(file)


@pytest.mark.parametrize("step", ["commit", *marked_long(["create"]), *marked_release(["large", "preupload", "batch"])])
def test_a_broken_upload_leaves_nothing(hub: Hub, step: str) -> None:
    hydractl.push("vit.st", REPO)
    before = list(hub.commits[REPO])
    hydractl.prune("vit.st", method="magnitude", keep=2, output="b.st")
    hub.fails_at = step
    if step == "create":
        hub.commits.clear()
    with pytest.raises(InputError, match="cannot push to me/hydra-vit"):
        hydractl.push("b.st", REPO, force=True)
    assert hub.commits == ({} if step == "create" else {REPO: before})


def test_what_somebody_else_commits_meanwhile_is_not_pushed_over(hub: Hub) -> None:
    hydractl.push("vit.st", REPO)
    hydractl.prune("vit.st", method="magnitude", keep=2, output="b.st")
    hub.meanwhile = {"b.st": b"another model"}
    with pytest.raises(InputError, match="cannot push to me/hydra-vit: .*412 Precondition Failed"):
        hydractl.push("b.st", REPO, force=True)
    assert len(hub.commits[REPO]) == 3 and hub.commits[REPO][-1]["b.st"] == b"another model"


def test_a_published_folder_and_the_card_of_an_eval(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("test.npz", x=np.zeros((6, 16, 16, 3), np.uint8), y=np.arange(6) % 5)
    assert main(["eval", "vit.st", "--test", "test.npz", "-o", "e.json", "-q"]) == 0
    assert main(["report", "e.json", "--card", "card.md", "-q"]) == 0
    zeroed = ["--layout", "zeroed", "-o", "f/", "-q"]
    assert main(["prune", "vit.st", "--method", "magnitude", "--keep", "2", *zeroed]) == 0
    assert main(["push", "f", f"hf:{REPO}", "--card", "card.md", "--dry-run", "-q"]) == 0
    assert REPO not in hub.commits
    assert main(["push", "f", f"hf:{REPO}", "--card", "card.md", "--private", "-q"]) == 0
    assert hub.private == {REPO} and "model.safetensors" in hub.commits[REPO][-1]
    card = hub.commits[REPO][-1]["README.md"].decode()
    metrics = yaml.safe_load(card.split("---")[1])["model-index"][0]["results"]
    assert any(m["type"] == "accuracy" for r in metrics for m in r["metrics"]) and "## Results" in card
    assert f"hf:{REPO}@" in capsys.readouterr().out


def test_messages(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.st", "b.st"):
        hydractl.prune("vit.st", method="random", keep=2, output=name)
        hydractl.push(name, REPO, force=True)
    with pytest.raises(InputError, match=r"2 checkpoints: a.st, b.st") as error:
        hydractl.open(f"hf:{REPO}")
    assert error.value.hint == f"name one: hf:{REPO}/a.st"
    hub.commits["me/empty"] = [{}]
    with pytest.raises(InputError, match=r"neither a published model \(config.json\) nor a checkpoint"):
        hydractl.open("hf:me/empty")
    with pytest.raises(UsageError, match="push takes a file or folder and hf:ORG/NAME, not a.st"):
        hydractl.push("a.st", "")
    with pytest.raises(UsageError, match="names no repository"):
        hydractl.push("a.st", "a b")
    # Without a connection, what is in the cache opens.
    opened = hydractl.open(f"hf:{REPO}/a.st").source.sha256
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    huggingface_hub.close_session()
    assert hydractl.open(f"hf:{REPO}/a.st").source.sha256 == hydractl.open(f"hf:{REPO}").source.sha256 == opened


NOTES = {
    "notes.txt": b"a password",
    "optimizer.pt": b"state",
    "training_args.bin": b"state",
    "run.st.state": b"state",
    "other.st": b"weights",
    "checkpoint-5/config.json": b"{}",
    ".env": b"TOKEN=1",
    ".git/config": b"url",
}


@pytest.mark.fault(59)
def test_only_files_of_the_model_leave_a_folder(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    hydractl.prune("vit.st", method="magnitude", keep=2, layout="zeroed", output="f/")
    for name, content in {**NOTES, "LICENSE-2.0.txt": b"terms", "merges.txt": b"#version"}.items():
        path = Path("f", name)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    Path("secret").write_bytes(b"elsewhere")
    Path("f/link.txt").symlink_to("../secret")
    model = {"config.json", "model.safetensors", "hydractl.mask.json", "README.md", "LICENSE-2.0.txt", "merges.txt"}
    capsys.readouterr()
    assert main(["push", "f", f"hf:{REPO}", "--dry-run", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert {file["path"] for file in planned["files"]} == model
    left = {file["path"]: file["bytes"] for file in planned["left_out"]}
    assert left.keys() == NOTES.keys() | {"link.txt"} and left["notes.txt"] == len(NOTES["notes.txt"])
    assert main(["push", "f", f"hf:{REPO}", "--dry-run"]) == 0
    shown = capsys.readouterr()
    assert "left out" in shown.out and "notes.txt" in shown.out and "--include NAME" in shown.err
    assert REPO not in hub.commits
    hydractl.push("f", REPO, include=["notes.txt"])
    assert hub.commits[REPO][-1].keys() - {".gitattributes"} == model | {"notes.txt"}
    assert b"elsewhere" not in hub.commits[REPO][-1].values()


@pytest.mark.fault(59)
def test_links_out_of_a_folder_are_not_pushed(hub: Hub) -> None:
    hydractl.prune("vit.st", method="magnitude", keep=2, layout="zeroed", output="f/")
    Path("secret").write_bytes(b"elsewhere")
    for name in ("LICENSE", "README.md", "notes.txt"):
        Path("f", name).symlink_to("../secret")
        with pytest.raises(InputError, match="is a link to a file outside of the folder"):
            hydractl.push("f", REPO, include=["notes.txt"] if name == "notes.txt" else [])
        Path("f", name).unlink()
    Path("f/COPYING").symlink_to("config.json")  # within the folder a link is as good as a file
    hydractl.push("f", REPO)
    assert hub.commits[REPO][-1]["COPYING"] == Path("f/config.json").read_bytes()
    for name in ("../secret", "/etc/passwd", "nothing"):
        with pytest.raises(InputError, match="holds no file"):
            hydractl.push("f", REPO, include=[name])
    with pytest.raises(UsageError, match="is one file"):
        hydractl.push("vit.st", REPO, include=["secret"])


@pytest.mark.fault(70)
@pytest.mark.parametrize(
    "text",
    [
        "---\na: [\n---\ntext",
        "---\n- a\n---\ntext",
        "---\nmodel-index: 7\n---\nx",
        "---\n!!python/name:os.system\n---\n",
    ],
)
def test_a_broken_card(hub: Hub, capsys: pytest.CaptureFixture[str], text: str) -> None:
    Path("card.md").write_text(text)
    assert main(["push", "vit.st", f"hf:{REPO}", "--card", "card.md", "-q"]) == 3
    said = capsys.readouterr().err
    assert said.startswith("error: the card card.md is broken: ") and len(said.splitlines()) == 2
