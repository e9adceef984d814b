"""Each kind of error: its exit code and its exact lines."""

from __future__ import annotations

import errno
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hydractl.errors import HydraError, InputError, Interrupted, NonFiniteError, OutputError, StorageError, UsageError
from hydractl.verbs.outcome import Outcome
from tests.answers import result_of

Run = Callable[..., Any]
PRUNE = ("prune", "vit.st", "--method", "random", "--keep", "8")


DEFECT = "hint: this is a defect of hydractl: HYDRACTL_DEBUG=1 shows where it happened\n"
SPACE = "hint: free some space or choose another folder with -o\n"
SMALLER = "hint: use a smaller --batch-size\n"


class OutOfMemoryError(RuntimeError):
    """Named as torch's."""


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (["prnue"], "error: no such verb: prnue; did you mean prune?\nhint: hydractl --help\n"),
        (["a.st"], "error: no such verb: a.st\nhint: hydractl --help\n"),
        (["--"], "error: no verb\nhint: hydractl --help\n"),
        (["--inf"], "error: no such option: --inf\nhint: hydractl --help\n"),
        (["--info"], "error: --info needs a FILE\nhint: hydractl --info --help\n"),
        (["prune", "--kep", "8"], "error: no such option: --kep; did you mean --keep?\nhint: hydractl prune --help\n"),
        (["prune", "-x"], "error: no such option: -x\nhint: hydractl prune --help\n"),
        (["prune", "--keep"], "error: option '--keep' requires an argument\nhint: hydractl prune --help\n"),
        (["prune", "--force=1"], "error: option '--force' does not take a value\nhint: hydractl prune --help\n"),
        (["fuse"], "error: fuse needs a MODEL\nhint: hydractl fuse --help\n"),
        (
            ["prune", "--samples", "0"],
            "error: 3 problems with the options of prune\n"
            "  - --samples must be at least 1, not 0 (flag)\n"
            "  - prune needs a MODEL\n"
            "  - prune needs one of --method, --scores, --circuit, --mask\n"
            "hint: hydractl prune --help\n",
        ),
    ],
)
def test_usage(arguments: list[str], lines: str, hydractl: Run) -> None:
    result = hydractl(*arguments)
    assert (result.code, result.out, result.err) == (2, "", lines)


@pytest.mark.fault(32)
@pytest.mark.parametrize(
    ("error", "code", "lines"),
    [
        (HydraError("it failed"), 1, "error: it failed\n"),
        (UsageError("no GPU", hint="--device cpu"), 2, "error: no GPU\nhint: --device cpu\n"),
        (InputError("bad mask", problems=["one", "two"]), 3, "error: bad mask\n  - one\n  - two\n"),
        (OutputError("the output exists: a.st", hint="--force"), 5, "error: the output exists: a.st\nhint: --force\n"),
        (NonFiniteError("NaN in x"), 6, "error: NaN in x\n"),
        (StorageError("no space"), 7, "error: no space\n"),
        (
            OSError(errno.ENOSPC, "No space left on device", "a.st"),
            7,
            "error: cannot write a.st: No space left on device\n" + SPACE,
        ),
        (
            OSError(errno.EDQUOT, "Disk quota exceeded", "a.st"),
            7,
            "error: cannot write a.st: Disk quota exceeded\n" + SPACE,
        ),
        (OSError(errno.EIO, "Input/output error"), 7, "error: cannot write: Input/output error\n" + SPACE),
        (KeyboardInterrupt(), 130, "error: interrupted\n"),
        (Interrupted("hydractl prune --resume"), 130, "error: interrupted\nhint: hydractl prune --resume\n"),
        (MemoryError(), 1, "error: out of memory\n" + SMALLER),
        (OutOfMemoryError("CUDA"), 1, "error: out of memory\n" + SMALLER),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), 1, "error: out of memory\n" + SMALLER),
        (
            ModuleNotFoundError("x", name="timm.layers"),
            1,
            "error: the installed timm has no module timm.layers\nhint: pip install -U timm\n",
        ),
        (
            ModuleNotFoundError("x", name="timber.layers"),
            1,
            "error: the package timber is not installed\nhint: pip install timber\n",
        ),
        (
            ValueError("one\ntwo"),
            1,
            "error: internal: ValueError: one\n" + DEFECT,
        ),
        (
            BrokenPipeError(errno.EPIPE, "Broken pipe"),
            1,
            "error: internal: BrokenPipeError: [Errno 32] Broken pipe\n" + DEFECT,
        ),
        (KeyError(), 1, "error: internal: KeyError\n" + DEFECT),
    ],
)
def test_errors_of_verbs(
    error: BaseException, code: int, lines: str, hydractl: Run, fake_verb: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(settings: Any, log: Any) -> Outcome:
        raise error

    fake_verb("prune", run)
    result = hydractl(*PRUNE, "--json")
    assert (result.code, result.out, result.err) == (code, "", lines)
    monkeypatch.setenv("HYDRACTL_DEBUG", "1")
    result = hydractl(*PRUNE)
    assert result.err.startswith("Traceback (most recent call last):\n")
    assert result.err.endswith(lines)
    monkeypatch.setenv("HYDRACTL_DEBUG", "0")
    assert hydractl(*PRUNE).err == lines


def test_unmet_requirements_after_the_answer(hydractl: Run, fake_verb: Run) -> None:
    fake_verb("bench", lambda settings, log: Outcome(result_of({"a": 1}), unmet=["b: ratio<=1.5 (1.7)"]))
    result = hydractl("bench", "vit.st")
    assert (result.code, result.out) == (4, "a: 1\n")
    assert result.err == "error: requirement not met: b: ratio<=1.5 (1.7)\n"
    fake_verb("bench", lambda settings, log: Outcome(result_of({"a": 1}), unmet=["x<1 (2)", "y<1 (3)"]))
    result = hydractl("bench", "vit.st", "--json")
    assert (result.code, result.out) == (4, '{\n  "a": 1\n}\n')
    assert result.err == "error: 2 requirements not met\n  - x<1 (2)\n  - y<1 (3)\n"


def test_nan_in_the_answer(hydractl: Run, fake_verb: Run) -> None:
    fake_verb("prune", lambda settings, log: Outcome(result_of({"x": float("nan")})))
    result = hydractl(*PRUNE, "--json")
    assert (result.code, result.out) == (6, "")
    assert result.err == "error: the answer holds a number that is not finite, which JSON cannot say\n"


def test_many_problems_are_cut(hydractl: Run, fake_verb: Run) -> None:
    def run(settings: Any, log: Any) -> Outcome:
        raise InputError("bad", problems=[str(n) for n in range(1000)])

    fake_verb("prune", run)
    lines = hydractl(*PRUNE).err.splitlines()
    assert len(lines) == 52
    assert lines[-1] == "  - and 950 more"


def test_flags_reach_the_verb(hydractl: Run, fake_verb: Run) -> None:
    seen = fake_verb("prune")
    hydractl("prune", "--keep=8", "a.st", "--with", "m.json", "--share-sites", "2", "-o", "x.st", "--mask", "--no-x")
    assert not seen  # --no-x was the value of --mask, and --keep has no effect with it
    hydractl("prune", "--keep=8", "a.st", "--scores", "-", "--force", "-qo", "x.st", "--no-dry-run")
    [settings] = seen
    assert [str(settings.scores), *map(str, settings.model)] == ["-", "a.st"]
    assert (settings.keep, settings.output) == (8, "x.st")
    assert (settings.force, settings.quiet, settings.dry_run) == (True, True, False)
    assert settings.sources["dry_run"] == "flag"
    seen = fake_verb("eval")
    hydractl("eval", "a.st", "--test", "d", "b.st", "--ood", "x=1", "--ood", "y=2", "--require", "a>=1")
    assert [*map(str, seen[0].model), *map(str, seen[0].ood)] == ["a.st", "b.st", "x=1", "y=2"]
    assert [str(requirement) for requirement in seen[0].require] == ["a>=1"]


def test_info(hydractl: Run, fake_info: None) -> None:
    assert hydractl("--info", "a.st").out == "file: a.st\n"
    assert hydractl("--info", "a.st", "b.st").out == "file: a.st\n\nfile: b.st\n"
    assert hydractl("--info", "--json", "a.st").out == '{\n  "file": "a.st"\n}\n'
    assert hydractl("--info", "a.st", "b.st", "--json").out.count('"file"') == 2
    result = hydractl("--info", "bad.st")
    assert (result.code, result.out, result.err) == (3, "", "error: bad.st is bad\n")
    result = hydractl("--info", "a.st", "bad1", "bad2")
    assert (result.code, result.out) == (3, "file: a.st\n")
    assert result.err == "error: 2 of 3 files cannot be described\n  - bad1 is bad\n  - bad2 is bad\n"


def test_an_option_that_takes_one_value_is_given_once(hydractl: Run) -> None:
    result = hydractl("prune", "a.st", "--keep", "8", "--keep", "6")
    assert result.err == "error: --keep is given as 8 and as 6; prune takes one\nhint: give it once\n"


def test_alone_it_prints_the_help(hydractl: Run) -> None:
    assert hydractl() == hydractl("--help")


def test_version(hydractl: Run) -> None:
    from hydractl import __version__

    assert hydractl("--version").out == f"hydractl {__version__}\n"


@pytest.mark.fault(33)
def test_a_library_older_than_declared(hydractl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = tmp_path / "torch-2.1.0.dist-info"
    found.mkdir()
    (found / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    result = hydractl(*PRUNE)
    assert result.code == 2 and result.err.startswith("error: torch 2.1.0 is installed, and hydractl needs torch>=")
    assert "hint: pip install 'torch>=" in result.err


def test_every_library_is_declared_by_its_oldest_version() -> None:
    declared = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["dependencies"]
    assert [one for one in declared if not re.fullmatch(r"[\w-]+>=[\d.]+", one)] == []
