"""The batch script of docs/finetuning.md, run by bash with stand-ins for hydractl and scontrol."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "finetuning.md").read_text(encoding="utf-8")
# Saves when it is told to end, as hydractl does; how it was called is noted.
HYDRACTL = """#!/bin/bash
echo "$OMP_NUM_THREADS $*" > called
trap 'sleep 0.2; echo saved > state; exit 130' TERM
[ -e quick ] && exit "$(cat quick)"
touch begun
while :; do sleep 0.02; done
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    block = next(b for b in re.findall(r"^```bash\n(.*?)^```", PAGE, flags=re.M | re.S) if "--array" in b)
    Path("members.sbatch").write_text(block)
    for name, text in {"hydractl": HYDRACTL, "scontrol": '#!/bin/bash\necho "$*" >> requeued\n'}.items():
        Path(name).write_text(text)
        Path(name).chmod(0o755)
    for name, value in {"JOB_ID": "71", "TASK_ID": "2"}.items():
        monkeypatch.setenv(f"SLURM_ARRAY_{name}", value)
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "8")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return ["bash", "members.sbatch"]


@pytest.mark.parametrize("code", [0, 3])
def test_the_code_of_the_training_is_that_of_the_task(script: list[str], code: int) -> None:
    Path("quick").write_text(str(code))
    assert subprocess.run(script).returncode == code
    assert not Path("requeued").exists()
    called = Path("called").read_text().split()
    assert called[0] == "8" and called[1:3] == ["finetune", "vit.st"]
    assert called[called.index("--seed") + 1] == "2" and called[called.index("-o") + 1] == "deep.2.st"
    assert called[-1] == "--resume"


@pytest.mark.parametrize(("number", "again"), [(signal.SIGUSR1, True), (signal.SIGTERM, False)])
def test_a_signal_to_the_script_saves_and_the_end_of_the_time_queues_again(
    script: list[str], number: int, again: bool
) -> None:
    task = subprocess.Popen(script)
    while not Path("begun").exists():
        assert task.poll() is None
        time.sleep(0.01)
    task.send_signal(number)
    assert task.wait(timeout=20) == 130
    assert Path("state").read_text() == "saved\n"
    assert (Path("requeued").read_text() if again else Path("requeued").exists()) == (
        "requeue 71_2\n" if again else False
    )
