"""Broken files without end: ``python -m tests.fuzz.campaign --count 1000000 [--reader NAME ...] [--jobs 2]``.

Every reader gets its part of the count. A process of its own reads the files of one reader, so that one which dies,
hangs or takes too much memory is noticed from outside and its file kept. The number of an input decides all of it, so
that the same command reads the same files. Findings go to ``--findings``, one folder each with the file and what
happened; where fewer mutations suffice, the file has no more.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.mutations import mutated
from tests.fuzz.readers import CORPUS, READERS, Reader, read, ways

SECONDS = 10
"""Of computing, for one file; a file that takes longer is a finding."""
HANGS = 10 * SECONDS
"""Seconds after which one that goes on is a finding, too: its process has died of a signal."""
MEMORY = 500 << 20
"""Bytes that reading one file may take, beside four times its size."""
_FORBIDDEN = {"os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "pickle.find_class"}
_FORBIDDEN |= {"socket.connect", "socket.getaddrinfo", "urllib.Request"}
_TEMPORARY = tempfile.gettempdir()
_COMMAND = 32  # of so many inputs of a reader that has a function, one is read by a whole command


class Finding(Exception):
    """A file that was not read as it should be."""


def prepare(name: str, folder: Path) -> list[bytes]:
    """A working directory for the files of one reader; the contents to break."""
    beside, reader = CORPUS / "beside", READERS[name]
    shutil.copytree(beside, folder, dirs_exist_ok=True)
    if "bert/" in reader.name:
        for part in ("hf-config", "hf-tokenizer", "hf-tokenizer-config", "hf-weights"):
            shutil.copytree(CORPUS / part, folder / "bert", dirs_exist_ok=True)
    (folder / reader.name).parent.mkdir(exist_ok=True, parents=True)
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


class Watch:
    """What the process opens, runs and connects to; an audit hook cannot be taken away again."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self.seen: list[str] = []
        sys.addaudithook(self._notice)

    def _notice(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        if event in _FORBIDDEN:
            self.seen.append(f"{event} {arguments!r}"[:300])
        elif event == "open" and isinstance(arguments[0], (str, bytes)):
            path = os.path.abspath(os.fsdecode(arguments[0]))
            writes = (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR)
            is_inside = path.startswith((self.folder, _TEMPORARY, "/dev/null"))
            is_code = path.startswith((sys.prefix, sys.base_prefix, "/proc/", "/sys/", "/dev/", str(CORPUS.parents[2])))
            # Who imports a module first writes it down compiled, beside the module itself.
            is_compiled = is_code and "/__pycache__/" in path
            if not is_inside and not is_compiled and (writes or not is_code):
                self.seen.append(f"open {path} {arguments[1:]}"[:300])


def check(reader: Reader, data: bytes, way: int, watch: Watch) -> None:
    """Read one file in the working directory.

    Raises:
        Finding: saying what was wrong with it.
    """
    folder = Path.cwd()
    path = folder / reader.name
    path.write_bytes(data)
    watch.seen = []
    problem, seconds = _timed(reader, folder, way, watch)
    if seconds > SECONDS:  # who is the first to need a library waits for its import as well
        problem, seconds = _timed(reader, folder, way, watch)
    if seconds > SECONDS:
        problem = f"{seconds:.0f} seconds; {problem}"
    if watch.seen:
        problem = f"{watch.seen[0]}; {problem}"
    if problem:
        raise Finding(problem)


def _timed(reader: Reader, folder: Path, way: int, watch: Watch) -> tuple[str | None, float]:
    """What is wrong with the file, None for nothing; the processor time of reading it, in seconds."""
    watch.folder = str(folder)
    start = time.process_time()
    try:
        problem = read(reader, folder, way)
    except BaseException as error:
        problem = f"{type(error).__name__}: {error}"
    finally:
        watch.folder = None
    return problem, time.process_time() - start


def attempt(name: str, number: int, most: int, contents: list[bytes], watch: Watch) -> None:
    """Read the broken file of this number, in the working directory.

    Raises:
        Finding: it went wrong.
    """
    draw, reader = Random(f"{name} {number}"), READERS[name]
    content, way = draw.choice(contents), ways(reader) - 1
    if reader.commands and (not reader.function or not draw.randrange(_COMMAND)):
        way = draw.randrange(len(reader.commands))
    check(reader, mutated(content, reader.form, draw, most), way, watch)


def search(name: str, numbers: range, contents: list[bytes], watch: Watch, hangs: int = 0) -> None:
    """Read the broken files of these numbers; where one takes more than so many seconds, the process ends.

    Raises:
        Finding: for the first that goes wrong, with as few mutations as it takes.
    """
    position = os.open("position", os.O_WRONLY | os.O_CREAT)
    for number in numbers:
        signal.alarm(hangs)
        os.pwrite(position, b"%020d" % number, 0)  # known to who follows, should this process end here
        try:
            attempt(name, number, 3, contents, watch)
        except Finding:
            for most in (1, 2, 3):
                attempt(name, number, most, contents, watch)
            raise
    signal.alarm(0)
    os.close(position)


def limit_memory(allowed: int) -> None:
    """Let this process take so many bytes more than it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * os.sysconf("SC_PAGE_SIZE") + allowed
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _work(name: str, count: int, first: int) -> None:
    """Read so many files of one reader; the line printed, if there is one, is a finding that ends it."""
    watch, reader = Watch(), READERS[name]
    contents = prepare(name, Path.cwd())
    for way in range(ways(reader)):
        with contextlib.suppress(Finding):  # whatever is imported late is there before memory is limited
            check(reader, contents[0], way, watch)
    limit_memory(MEMORY + 4 * (1 << 20))
    try:
        search(name, range(first, first + count), contents, watch, HANGS)
    except Finding as finding:
        print(finding, flush=True)


def _campaign(name: str, count: int, first: int, findings: Path) -> tuple[int, list[str]]:
    """Read so many files of one reader, in processes that end at their first finding; how many were read, and these."""
    done, found = 0, []
    environment = {**os.environ, "PYTHONPATH": str(CORPUS.parents[2]), "HF_HUB_OFFLINE": "1"}
    while done < count and len(found) < 20:
        with tempfile.TemporaryDirectory() as place:
            words = [sys.executable, "-m", "tests.fuzz.campaign", "--work", name, str(count - done), str(first + done)]
            ended = subprocess.run(words, cwd=place, env=environment, capture_output=True, text=True)
            problem = ended.stdout
            if ended.returncode:
                problem = f"died with {ended.returncode}: {ended.stderr[-1000:]}"
            done = int((Path(place) / "position").read_text()) - first + 1
            if problem:
                found.append(problem)
                file, kept = Path(READERS[name].name), findings / f"{name}-{first + done - 1}"
                kept.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(place / file, kept / file.name)
                (kept / "problem.txt").write_text(problem)
    return done, found


def _main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=100_000, help="files in all")
    parser.add_argument("--reader", nargs="+", default=list(READERS), choices=list(READERS))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"))
    parser.add_argument("--work", nargs=3, metavar=("READER", "COUNT", "SEED"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        _work(options.work[0], int(options.work[1]), int(options.work[2]))
        return
    from concurrent.futures import ThreadPoolExecutor

    each = -(-options.count // len(options.reader))
    total: Counter[str] = Counter()
    with ThreadPoolExecutor(options.jobs) as pool:
        jobs = {n: pool.submit(_campaign, n, each, options.seed, options.findings.resolve()) for n in options.reader}
        for name, job in jobs.items():
            done, found = job.result()
            total.update(files=done, findings=len(found))
            print(f"{name:20} {done:8} files  {len(found)} findings", flush=True)
            for problem in found:
                print(f"    {problem.splitlines()[0][:200]}", flush=True)
    print(f"{'in all':20} {total['files']:8} files  {total['findings']} findings; they are in {options.findings}")


if __name__ == "__main__":
    _main()
