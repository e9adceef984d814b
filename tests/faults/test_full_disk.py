"""A disk that is full while a library writes: exit 7, the old output as it was, and nothing left beside it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.running import link_files

TINY = "timm:vit_tiny_patch16_224?pretrained=0&img_size=8&patch_size=4&embed_dim=12&depth=1&num_heads=3&num_classes=3"

# Files cannot grow beyond a limit while the command runs. It runs in a process of its own, as torch may end it.
LIMITED = """
import resource, signal, sys
from hydractl.cli.app import main
limit, *command = sys.argv[1:]
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
sys.exit(main([*command, "--force", "-q"]))
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and images, and an evaluation of it."""
    folder = tmp_path_factory.mktemp("models")
    numbers = np.random.default_rng(0)
    images = numbers.integers(0, 256, (64, 8, 8, 3), dtype=np.uint8)
    np.savez(folder / "a.npz", x=images, y=numbers.integers(0, 3, 64))
    np.savez(folder / "o.npz", x=255 - images)
    for command in (
        ["prune", TINY, "--method", "magnitude", "--keep", "2", "-o", "m.st"],
        ["eval", "m.st", "--test", "a.npz", "--ood", "o=o.npz", "-o", "eval.json"],
    ):
        subprocess.run([sys.executable, "-m", "hydractl", *command, "-q"], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.mark.long
@pytest.mark.fault(95)
@pytest.mark.parametrize(
    ("command", "output", "limit"),
    [
        # The archive of torch fails early, within it, and at its end.
        ("export m.st --format pt2 -o x.pt2", "x.pt2", 2_000),
        ("export m.st --format pt2 -o x.pt2", "x.pt2", 10_000),
        ("export m.st --format pt2 -o x.pt2", "x.pt2", -1),
        ("export m.st --format onnx -o x.onnx", "x.onnx", 2_000),
        ("report eval.json --html x.html", "x.html", 2_000),
        ("prune m.st --method magnitude --keep 1 -o folder/ --layout zeroed", "folder", 2_000),
    ],
)
def test_no_space_for_what_a_library_writes(
    command: str, output: str, limit: int, models: Path, tmp_path: Path
) -> None:
    link_files(models, tmp_path)
    old = tmp_path / output
    if old.suffix:
        old.write_bytes(b"old")
    else:
        old.mkdir()
    before = sorted(path.name for path in tmp_path.iterdir())

    if limit < 0:  # a byte less than what is needed
        subprocess.run([sys.executable, "-c", LIMITED, "100000000", *command.split()], cwd=tmp_path, check=True)
        limit += old.stat().st_size
        old.write_bytes(b"old")
    arguments = [sys.executable, "-c", LIMITED, str(limit), *command.split()]
    ended = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, timeout=300)

    first, hint = ended.stderr.strip().splitlines()
    assert ended.returncode == 7, ended.stderr
    assert first.startswith(f"error: cannot write {old.name}") and first.endswith(": File too large")
    assert hint == "hint: free some space or choose another folder with -o"
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert (list(old.iterdir()) == []) if old.is_dir() else old.read_bytes() == b"old"
