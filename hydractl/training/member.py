"""One of several trainings: what it is called, what it trains, and the command line that does it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from hydractl.errors import UsageError
from hydractl.files.atomic import named_apart
from hydractl.model.source import ModelOptions, open_sources
from hydractl.settings import FinetuneSettings
from hydractl.settings.words import words_of
from hydractl.training.run_files import RunFiles

_REPLACED = ("output", "seed", "device", "devices", "members", "json", "config", "dry_run", "quiet", "verbose")
_SUFFIXES = (".safetensors", ".st")


@dataclass(frozen=True)
class Member:
    """One of several trainings.

    Attributes:
        name: what a person calls it: its output without the ending.
        settings: of its training alone.
        files: it writes.
    """

    name: str
    settings: FinetuneSettings
    files: RunFiles

    def words(self, device: str) -> list[str]:
        """The command line that trains it on a device."""
        settings = self.settings
        said = ["--quiet"] if settings.quiet else ["--verbose"] if settings.verbose else []
        own = [f"--output={settings.output}", f"--seed={settings.seed}", f"--device={device}"]
        given = words_of(settings, _REPLACED)
        # /dev/null instead of hydra.yaml: what that says is among the words.
        return ["finetune", *given, *own, "--config=/dev/null", "--json", *said, "--", *settings.model]


def members_of(settings: FinetuneSettings, options: ModelOptions) -> list[Member]:
    """The trainings that are asked for: of each model as many as there are members.

    Raises:
        UsageError: two of them would write the same file.
        InputError: for models that cannot be opened.
    """
    found = []
    for model, output in zip(settings.model, _outputs(settings, options), strict=True):
        for index in range(settings.members):
            path = numbered(output, index) if settings.members > 1 else output
            files = RunFiles.of(path, settings.log, settings.snapshots)
            name = Path(path).name if files.folder else _stem(Path(path).name)
            board = None if settings.tensorboard is None else str(Path(settings.tensorboard) / name)
            own = {"output": path, "seed": settings.seed + index, "members": 1, "devices": [], "model": [model]}
            found.append(Member(name, replace(settings, **own, tensorboard=board), files))  # type: ignore[arg-type]
    names = [member.name for member in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(
            f"several trainings would write {', '.join(twice)}", hint="give MODELs with different file names"
        )
    return found


def _outputs(settings: FinetuneSettings, options: ModelOptions) -> list[str]:
    """The output of each model, as its command alone would name it; in a folder where ``-o`` names one."""
    several = len(settings.model) > 1
    if settings.output is not None and not several:
        return [settings.output]

    folder = settings.output or ""
    return [f"{folder}{source.name}.tuned.st" for source in open_sources(settings.model, options)]


def numbered(output: str, index: int) -> str:
    """``a.st`` becomes ``a.0.st``, a folder ``a/`` becomes ``a.0/``."""
    apart = named_apart(Path(output), index, folder=(folder := output.endswith("/")))
    return f"{apart}/" if folder else str(apart)


def _stem(name: str) -> str:
    return next((name.removesuffix(suffix) for suffix in _SUFFIXES if name.endswith(suffix)), name)


def device_name(device: str) -> str:
    """``0`` is short for ``cuda:0``."""
    return f"cuda:{device}" if device.isdigit() else device
