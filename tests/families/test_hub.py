"""Opening models from the Hub, and what the page says of uploading them, against a server that speaks its protocol."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import torch
from PIL import Image

import hydractl
from hydractl.errors import InputError, UsageError
from hydractl.files.checkpoint import sha256_file
from tests.fake_hub import Hub, serving
from tests.pico import SMALL
from tests.running import run

REPO = "me/hydra-vit"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "interop.md"


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
        # For the commands of the page, which are processes of their own.
        monkeypatch.setenv("HF_ENDPOINT", address)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        monkeypatch.setenv("HF_TOKEN", "hf_of_a_test")
        huggingface_hub.close_session()
        monkeypatch.chdir(tmp_path)
        shutil.copy(vit, "vit.st")
        yield hub
    huggingface_hub.close_session()


def test_a_checkpoint_by_its_names(hub: Hub) -> None:
    hydractl.prune("vit.st", method="magnitude", keep=2, output="a.st")
    hub.commits[REPO] = [{"a.st": Path("a.st").read_bytes()}]
    for name in (f"{REPO}/a.st", f"{REPO}@{hub.sha(REPO)}/a.st"):
        assert hydractl.open(f"hf:{name}").source.sha256 == sha256_file("a.st"), name
    pulled = hydractl.load(f"hf:{REPO}/a.st", device="cpu")
    local = hydractl.load("a.st", device="cpu")
    inputs = local.example_inputs(2)
    assert torch.equal(pulled(inputs), local(inputs))


def test_messages(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Path("vit.st").read_bytes()
    hub.commits[REPO] = [{"a.st": whole}]
    with pytest.raises(InputError, match=r"me/hydra-vit holds no config.json of such a model") as error:
        hydractl.open(f"hf:{REPO}")
    assert error.value.hint == "a checkpoint of hydractl is named by its file: hf:ORG/NAME/FILE.st"
    with pytest.raises(UsageError, match="names no repository"):
        hydractl.open("hf:a b")
    # Without a connection, what is in the cache opens.
    opened = hydractl.open(f"hf:{REPO}/a.st").source.sha256
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    huggingface_hub.close_session()
    assert hydractl.open(f"hf:{REPO}/a.st").source.sha256 == opened


@pytest.mark.long
def test_the_commands_of_the_page_upload_all_that_is_in_the_folder(hub: Hub, with_hydractl: dict[str, str]) -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## The Hugging Face Hub")[2]
    match = re.search(r"```sh\n(.*?)```", section, re.DOTALL)
    shutil.copy("vit.st", "hydra.st")
    random = np.random.default_rng(0)
    np.savez("test.npz", x=random.integers(0, 256, (6, 16, 16, 3), np.uint8), y=np.arange(6) % 5)
    np.savez("svhn.npz", x=random.integers(0, 256, (6, 16, 16, 3), np.uint8))
    Image.new("RGB", (16, 16)).save("cat.png")
    commands, _, last = match[1].strip().rpartition("\n")
    commands = commands.replace("mkdir upload", "mkdir upload; echo a password > upload/notes.txt")
    path = os.pathsep.join([with_hydractl["PATH"], str(Path(sys.executable).parent)])  # there is hf
    of_the_hub = {name: value for name, value in os.environ.items() if name.startswith("HF_")}
    environment = {**with_hydractl, **of_the_hub, "PATH": path}
    done = subprocess.run(["bash", "-e", "-c", commands], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    uploaded = hub.commits[REPO][-1]
    assert uploaded.keys() - {".gitattributes"} == {"report.html", "hydra.onnx", "hydra.st", "notes.txt"}
    assert uploaded["hydra.st"] == Path("hydra.st").read_bytes()
    assert last == f"hydractl predict hf:{REPO}/hydra.st cat.png"
    run(*last.split()[1:])
