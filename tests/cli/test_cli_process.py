"""The command as a process: what it imports, its signals, its closed and full outputs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.spread import marked_long, marked_release

ROOT = Path(__file__).parents[2]
HEAVY = (
    "torch", "torchvision", "numpy", "scipy", "pandas", "timm", "transformers", "open_clip", "safetensors", "PIL",
    "sklearn", "rich", "pydantic", "yaml", "click",
)  # fmt: skip

# A fake verb in a real process: PROGRAM is the body of its run().
SCRIPT = """
import sys, types, time, os
from importlib.machinery import ModuleSpec
from pathlib import Path
from hydractl.cli.app import main
from hydractl.files.results import Result
from hydractl.verbs.outcome import Outcome

class Answer(Result, extra="allow"):
    def to_dict(self):
        return self.model_dump(exclude_unset=True)

def run(call):
    log = call.log
{body}

module = types.ModuleType("hydractl.verbs.report")  # for which nothing imports torch
module.__spec__ = ModuleSpec(module.__name__, None)
module.run = run
sys.modules["hydractl.verbs.report"] = module
sys.exit(main(["report", "a.json", *sys.argv[1:]]))
"""


def environment(**more: str) -> dict[str, str]:
    # Buffered as most people have it: an unbuffered interpreter hides what is left to flush at the exit.
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HYDRACTL_") and k != "PYTHONUNBUFFERED"}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**kept, "PYTHONPATH": path, **more}


def command(body: str, *arguments: str) -> list[str]:
    indented = "\n".join("    " + line for line in body.splitlines())
    return [sys.executable, "-c", SCRIPT.format(body=indented), *arguments]


def heavy_after(code: str, tmp_path: Path) -> list[str]:
    """Which heavy packages are imported after running ``code`` in a fresh interpreter."""
    report = f"\nimport sys\nsys.stderr.write(' '.join(m for m in {HEAVY!r} if m in sys.modules))"
    process = subprocess.run(
        [sys.executable, "-c", code + report],
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    return process.stderr.split()


HELP = """
from hydractl.cli.app import main
for arguments in (["--help"], ["--info", "--help"], ["eval", "-h"]):
    assert main(arguments) == 0
"""


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    found = heavy_after(HELP, tmp_path)
    assert [name for name in found if name != "pydantic"] == []


def test_settings_import_nothing_heavy(tmp_path: Path) -> None:
    code = "import hydractl.cli.running; from hydractl.options.verbs import VERBS, options_of_verb\n"
    code += "list(map(options_of_verb, VERBS))"
    assert heavy_after(code, tmp_path) == []


def test_the_app_help_builds_no_options(tmp_path: Path) -> None:
    """It is a fifth of the time of the most used command."""
    code = "from hydractl.cli.app import main\nmain(['--help'])\nimport sys\n"
    code += "assert 'hydractl.options.option' not in sys.modules"
    heavy_after(code, tmp_path)


@pytest.mark.fault(5)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_cleans_up_and_exits_with_130(number: signal.Signals, tmp_path: Path) -> None:
    body = """
try:
    print("ready", file=sys.stderr, flush=True)
    time.sleep(60)
finally:
    Path("cleaned").touch()
"""
    process = subprocess.Popen(
        command(body), env=environment(), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "ready\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "error: interrupted\n")
    assert (tmp_path / "cleaned").exists()


@pytest.mark.fault(5)
def test_a_second_interrupt_ends_at_once(tmp_path: Path) -> None:
    body = """
try:
    print("ready", file=sys.stderr, flush=True)
    time.sleep(60)
finally:
    print("cleaning", file=sys.stderr, flush=True)
    time.sleep(60)
"""
    process = subprocess.Popen(command(body), env=environment(), cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in ("ready\n", "cleaning\n"):
        assert process.stderr.readline() == line
        process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == -signal.SIGINT


LONG = "return Outcome(Answer(x=['y' * 100] * 20000), unmet=%r)"


@pytest.mark.fault(14)
@pytest.mark.parametrize(("unmet", "code"), [*marked_long([([], 0)]), (["x>1"], 4)])
def test_a_reader_that_leaves(unmet: list[str], code: int, tmp_path: Path) -> None:
    process = subprocess.Popen(
        command(LONG % unmet, "--json"),
        env=environment(),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.read(10) == b'{\n  "x": ['
    process.stdout.close()
    err = process.stderr.read().decode()
    assert process.wait(timeout=30) == code
    assert err == "".join(f"error: requirement not met: {text}\n" for text in unmet)


def test_help_to_a_reader_that_left(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    process = subprocess.run(
        [sys.executable, "-m", "hydractl", "--help"],
        env=environment(),
        stdout=write,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
    )
    os.close(write)
    assert (process.returncode, process.stderr) == (0, b"")


def run_with(arguments: list[str], redirect: str, tmp_path: Path) -> Any:
    """Run with a redirection only a shell can make."""
    return subprocess.run(
        ["sh", "-c", f'"$@" {redirect}', "sh", *arguments],
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )


@pytest.mark.fault(14)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk(tmp_path: Path) -> None:
    process = run_with(command("return Outcome(Answer(x=1))", "--json"), "> /dev/full", tmp_path)
    assert process.returncode == 7
    assert process.stderr == "error: cannot write to standard output: No space left on device\n"


@pytest.mark.fault(14)
@pytest.mark.parametrize(
    "redirect", [">&-", "2>&-", *marked_long(["> /dev/null 2> /dev/full"]), *marked_release([">&- 2>&-"])]
)
def test_closed_streams(redirect: str, tmp_path: Path) -> None:
    body = "log.warn('w')\nprint('p')\nPath('ran').touch()\nreturn Outcome(Answer(x=1), files=[Path('ran')])"
    process = run_with(command(body, "--json"), redirect, tmp_path)
    assert process.returncode == 0
    assert (tmp_path / "ran").exists()
    assert "Traceback" not in process.stderr
    assert process.stdout == ('{\n  "x": 1\n}\n' if redirect == "2>&-" else "")  # nothing that was said is an answer


@pytest.mark.fault(35)
def test_a_plain_c_locale(tmp_path: Path) -> None:
    process = subprocess.run(
        command(
            r"log.warn('\xe9')" + "\n" + r"return Outcome(Answer(**{'\xe9': '\xfc'}), files=[Path('\xe9.st')])",
            "--json",
        ),
        env={**environment(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", PYTHONIOENCODING="ascii:strict")},
        cwd=tmp_path,
        capture_output=True,
    )
    assert (process.returncode, process.stdout.decode("utf-8")) == (0, '{\n  "é": "ü"\n}\n')
    assert process.stderr == b"warning: \\xe9\nwrote \\xe9.st\n"
