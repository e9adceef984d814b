"""``hydractl push``: upload a checkpoint or a published folder, with its card, to the Hugging Face Hub."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from hydractl.data.labels import some
from hydractl.errors import InputError, UsageError
from hydractl.exports.hub import CARD, Destination, PushedFiles, contents_of, upload
from hydractl.families.reading import parse_hub_name, refused_as
from hydractl.files.checkpoint import sha256_file
from hydractl.files.verb_answers import PushAnswer, PushedFile
from hydractl.log import Log
from hydractl.model.source import ModelOptions, Source, open_source
from hydractl.report.eval_card import hub_card
from hydractl.settings.pushing import PushSettings
from hydractl.verbs.outcome import Outcome

SCHEMA = "hydractl.push/1"
_CARD_HINT = "eval --card FILE.md writes one"


def run(settings: PushSettings, log: Log) -> Outcome:
    """Upload the files and their card in one commit.

    Returns:
        The files with their digests, which of them were uploaded, and the reference that pins the commit.

    Raises:
        UsageError, InputError: the model or the name of the repository is wrong.
        OutputError: the repository has other files with these names, and ``--force`` is not given.
    """
    # Parse the arguments: the file or folder, and the repository, e.g. ``hf:NAME/REPO@BRANCH``.
    path = Path(settings.model[0])
    hub_text = settings.model[1]
    hub_name = parse_hub_name(hub_text.removeprefix("hf:"))
    repo = hub_name.repo
    branch = hub_name.revision
    if hub_name.file is not None:
        raise UsageError(
            f"{hub_text} names a file; it is called {path.name} there", hint=f"hydractl push {path} hf:{repo}"
        )
    if not path.exists():
        raise InputError(f"no such file or folder: {path}")

    # Collect the files to upload. The card is made new, or from an existing card.
    source = open_source(str(path), ModelOptions(bodies=True))
    contents = contents_of(path, settings.include)
    files: dict[str, Path | bytes] = dict(contents.files)
    files[CARD] = _card(settings, source, repo, contents)
    pushed_files = [_file_record(name, content) for name, content in files.items()]
    files_left_out = [PushedFile(path=name, bytes=size) for name, size in contents.left_out.items()]
    answer = PushAnswer(
        schema=SCHEMA,
        model=source.name,
        repository=repo,
        branch=branch,
        files=pushed_files,
        left_out=files_left_out,
    )
    if contents.left_out:
        names = some(list(contents.left_out), 5)
        log.info(f"left out, as no part of the model: {names}; --include NAME takes one along")
    if settings.dry_run:
        answer = replace(answer, dry_run=True)
        return Outcome(answer.to_json())

    # Upload them.
    listed = ", ".join(files)
    log.info(f"uploading {listed} to {repo}")
    message = settings.message or f"Add {path.name}"
    destination = Destination(repo, branch, settings.private, message, settings.force)
    commit, uploaded = upload(files, destination)
    pushed = replace(answer, commit=commit, uploaded=uploaded, pinned=f"hf:{repo}@{commit}")
    return Outcome(pushed.to_json())


def _file_record(name: str, content: Path | bytes) -> PushedFile:
    """Return the entry for a file in the answer: its name in the repository, its size in bytes and its digest."""
    if isinstance(content, bytes):
        size = len(content)
        digest = hashlib.sha256(content).hexdigest()
    else:
        size = content.stat().st_size
        digest = sha256_file(content)
    return PushedFile(path=name, bytes=size, sha256=digest)


def _card(settings: PushSettings, source: Source, repo: str, contents: PushedFiles) -> bytes:
    """Return the card of the repository, made from the card of ``--card`` or of the folder, or else a new one.

    Raises:
        InputError: the card cannot be read, or is broken.
    """
    card_text = None
    card_file = settings.card or contents.files.get(CARD)
    if card_file is not None:
        try:
            card_text = Path(card_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read the card {card_file}", hint=_CARD_HINT) from error
    with refused_as(f"the card {card_file} is broken", hint=_CARD_HINT):
        return hub_card(
            source.description,
            _hub_task(source),
            repo,
            card_text,
            license=settings.license,
            base_model=settings.base_model,
        )


def _hub_task(source: Source) -> str:
    """Return the Hub's name for the task of the model."""
    classes = source.family.classes(source.description.config)
    if classes is None:
        return "zero-shot-image-classification"
    if classes == 0:
        return "feature-extraction"
    return f"{source.description.reads}-classification"
