"""What a checkpoint says of itself, beside its weights: all that is needed to rebuild, compare and trace a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydractl.errors import InputError
from hydractl.files.fingerprints import Entry, checked
from hydractl.files.header import CHECKPOINT_SCHEMA
from hydractl.files.version import __version__
from hydractl.heads.mask import MOST_HEADS, MOST_HEADS_OF_ALL, HeadMask
from hydractl.jsonio import shown

DEFAULT_PROMPT = "A photo of a {label}."
"""The template that makes a prompt of a class name where no other is given (paper D.3)."""

CHOSEN_BY_CALIBRATE = ("calibration", "threshold", "ood_score", "conformal", "reference")
"""Entries of ``extra`` that ``calibrate`` writes, and whatever changes the predictions leaves out."""

KINDS = ("dense", "pruned", "fused")
LAYOUTS = ("sliced", "zeroed")


def provenance(
    verb: str, seed: int, inputs: Sequence[str], details: Mapping[str, object], bases: Sequence[str] | None = None
) -> dict[str, object]:
    """Record how a file was made, without clock, host, user or path.

    Args:
        verb: which command made it.
        seed: of all that is drawn.
        inputs: SHA-256 of every input.
        details: the settings that decided the result, already resolved (method, budget, data fingerprint, ...).
        bases: SHA-256 of the checkpoints whose weights it goes back to, the nearest first; None: the inputs. They are
            noted where they are not the inputs.
    """
    import torch

    record: dict[str, object] = {
        "hydractl": __version__,
        "torch": torch.__version__.split("+")[0],
        "verb": verb,
        "seed": seed,
        "inputs": list(inputs),
    }
    if bases is not None and list(bases) != list(inputs):
        record["bases"] = list(bases)
    record["settings"] = {key: value for key, value in details.items() if value is not None}
    return record


def bases_of(provenance: Any) -> list[str]:
    """Return the SHA-256 of the checkpoints that a file goes back to, the nearest first; none where it does not say."""
    if not isinstance(provenance, Mapping):
        return []
    digests = provenance.get("bases", provenance.get("inputs"))
    if not isinstance(digests, list):
        return []
    return [digest for digest in digests if isinstance(digest, str)]


@dataclass(frozen=True)
class Description:
    """The self-description of a model file.

    Attributes:
        kind: ``dense`` (all heads), ``pruned`` or ``fused``.
        family, family_version: the library and its version.
        arch, config: the architecture and all that is needed to build it without weights.
        preprocess: how raw samples become inputs.
        labels: class names in the order of the classifier, or None when unknown.
        prompt: of a zero-shot model, the templates that make prompts of ``labels``, where they were given.
        masks: the kept heads, one mask per member; dense and pruned models have one.
        layout: ``sliced`` (removed heads are gone) or ``zeroed`` (stock shapes, output columns zero).
        merge: of a fused model, which parts were averaged.
        members: of a fused model, one mapping per member (its SHA-256 and provenance).
        extra: results stored with the model, for example the self-check of fusing.
        provenance: how the file was made: inputs by SHA-256, settings, versions, seed; no clock, host or path.
        seen: samples that circuits, trainings and calibrations behind it saw (:mod:`hydractl.files.fingerprints`).
        origin: where the weights that it goes back to were published, as ``ORG/NAME@COMMIT`` of the hub, or None.
    """

    kind: str
    family: str
    family_version: str
    arch: str
    config: Mapping[str, Any]
    preprocess: Mapping[str, Any]
    labels: Sequence[str] | None
    masks: Sequence[HeadMask]
    layout: str = "sliced"
    merge: Sequence[str] | None = None
    members: Sequence[Mapping[str, Any]] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    prompt: Sequence[str] | None = None
    seen: Sequence[Entry] = ()
    origin: str | None = None

    @property
    def mask(self) -> HeadMask:
        """The mask of a model with one member."""
        return self.masks[0]

    @property
    def reads(self) -> str:
        """The kind of sample that the model reads: ``image`` or ``text``."""
        if self.preprocess.get("kind") == "text":
            return "text"
        return "image"

    @property
    def params_nonzero(self) -> int | None:
        """The number of nonzero parameters of a model with pruned weights; None where they are not counted."""
        sparse = self.extra.get("sparse")
        if not isinstance(sparse, Mapping):
            return None
        count = sparse.get("params_nonzero")
        if type(count) is not int:
            return None
        return count

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form ``hydractl.checkpoint/1``."""
        document: dict[str, object] = {
            "schema": CHECKPOINT_SCHEMA,
            "kind": self.kind,
            "family": self.family,
            "family_version": self.family_version,
            "arch": self.arch,
            "config": dict(self.config),
            "preprocess": dict(self.preprocess),
            "labels": None if self.labels is None else list(self.labels),
            # A list of pairs, because canonical JSON sorts keys and the order of sites carries meaning.
            "sites": [[path, heads] for path, heads in self.masks[0].heads.items()],
            "layout": self.layout,
            "merge": None if self.merge is None else list(self.merge),
            "members": self._members_json(),
            "extra": dict(self.extra),
            "provenance": dict(self.provenance),
        }
        # What few files have is only in these.
        if self.prompt is not None:
            document["prompt"] = list(self.prompt)
        if self.seen:
            document["seen"] = [dict(entry) for entry in self.seen]
        if self.origin is not None:
            document["origin"] = self.origin
        return document

    def _members_json(self) -> list[dict[str, object]]:
        """Return what is known of each member, with the heads that it keeps."""
        members = []
        for index, mask in enumerate(self.masks):
            member = {}
            if self.members:
                member = dict(self.members[index])
            member["kept"] = {path: list(kept) for path, kept in mask.kept.items()}
            members.append(member)
        return members

    @classmethod
    def from_json(cls, document: Mapping[str, Any], origin: str) -> Description:
        """Read a description.

        Raises:
            InputError: naming everything that is missing or malformed.
        """
        if document.get("schema") != CHECKPOINT_SCHEMA:
            raise InputError(f"{origin} has the schema {shown(document.get('schema'))}, expected {CHECKPOINT_SCHEMA!r}")
        problems = _wrong_fields(document)
        masks: list[HeadMask] = []
        if not problems:
            problems = _contradictions(document)
            masks = _read_masks(document, problems)
        if problems:
            raise InputError(f"{origin} has a broken description", problems=problems)
        members = []
        for member in document["members"]:
            members.append({key: value for key, value in member.items() if key != "kept"})
        return cls(
            kind=document["kind"],
            family=document["family"],
            family_version=document["family_version"],
            arch=document["arch"],
            config=document["config"],
            preprocess=document["preprocess"],
            labels=document["labels"],
            masks=masks,
            layout=document["layout"],
            merge=document["merge"],
            members=members,
            extra=document["extra"],
            provenance=document["provenance"],
            prompt=document.get("prompt"),
            seen=tuple(checked(document.get("seen"), origin)),
            origin=document.get("origin"),
        )


_MOST_MEMBERS = 1024
_REQUIRED: dict[str, type | tuple[type, ...]] = {
    "kind": str,
    "family": str,
    "family_version": str,
    "arch": str,
    "config": dict,
    "preprocess": dict,
    "labels": (list, type(None)),
    "sites": list,
    "layout": str,
    "merge": (list, type(None)),
    "members": list,
    "extra": dict,
    "provenance": dict,
}


def _wrong_fields(document: Mapping[str, Any]) -> list[str]:
    """List the fields that every description has and this one lacks, then those of the wrong type."""
    missing = []
    mistyped = []
    for key, kind in _REQUIRED.items():
        if key not in document:
            missing.append(f"{key!r} is missing")
        elif not isinstance(document[key], kind):
            mistyped.append(f"{key!r} is not of the right type")
    return missing + mistyped


def _contradictions(document: Mapping[str, Any]) -> list[str]:
    """List values that no description has, in a document whose fields have the right types."""
    problems = []
    kind = document["kind"]
    members = len(document["members"])
    if kind not in KINDS:
        problems.append(f"unknown kind {shown(kind)}")
    if document["layout"] not in LAYOUTS:
        problems.append(f"unknown layout {shown(document['layout'])}")
    for key in ("labels", "merge"):
        if not _are_texts(document[key] or []):
            problems.append(f"{key!r} holds something that is not a string")
    prompt = document.get("prompt")
    if prompt is not None and not (isinstance(prompt, list) and prompt and _are_texts(prompt)):
        problems.append("'prompt' is not a list of templates")
    if not isinstance(document.get("origin"), str | None):
        problems.append("'origin' is no text")
    if not members:
        problems.append("it has no members")
    if kind in ("dense", "pruned") and members > 1:
        problems.append(f"a {kind} model cannot have {members} members")
    if kind == "fused" and document["layout"] != "sliced":
        problems.append("a fused model is always sliced")
    return problems


def _are_texts(values: Sequence[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _read_masks(document: Mapping[str, Any], problems: list[str]) -> list[HeadMask]:
    """Return the mask of each member; what is wrong with them is added to ``problems``."""
    heads = _read_heads(document["sites"], problems)
    if heads is None:
        return []
    members = document["members"]
    if len(members) > _MOST_MEMBERS:
        problems.append(f"{len(members)} members (the limit is {_MOST_MEMBERS})")
        return []
    masks = []
    for index, member in enumerate(members):
        kept = None
        if isinstance(member, dict):
            kept = member.get("kept")
        if not isinstance(kept, dict) or set(kept) != set(heads):
            problems.append(f"member {index} does not name the kept heads of every site")
            continue
        kept_heads = {}
        for path, count in heads.items():
            if _are_heads(kept[path], count):
                kept_heads[path] = tuple(kept[path])
            else:
                problems.append(f"member {index} keeps {shown(kept[path])} at {shown(path)}, which has {count} heads")
        if len(kept_heads) == len(heads):
            masks.append(HeadMask(heads, kept_heads))
    are_full = all(mask.is_full for mask in masks)
    if document["kind"] == "dense" and not are_full:
        problems.append("a dense model keeps every head, this one does not")
    return masks


def _read_heads(sites: Sequence[Any], problems: list[str]) -> dict[str, int] | None:
    """Return the number of heads of each site by its path; None where masks would make no sense of them."""
    heads: dict[str, int] = {}
    for pair in sites:
        if not _is_site(pair):
            problems.append(f"site {shown(pair)} is not a pair of path and head count")
            return None
        path, count = pair
        if path in heads or count < 1:
            problems.append(f"site {shown(pair)} is listed twice or has no heads")
        heads[path] = count
    most = max(heads.values(), default=0)
    in_all = sum(heads.values())
    if most > MOST_HEADS or in_all > MOST_HEADS_OF_ALL:
        problems.append(f"more heads than {MOST_HEADS} at one site or {MOST_HEADS_OF_ALL} in all")
        return None
    return heads


def _is_site(pair: Any) -> bool:
    if not isinstance(pair, list) or len(pair) != 2:
        return False
    path, count = pair
    return isinstance(path, str) and type(count) is int


def _are_heads(values: Any, heads: int) -> bool:
    """Return whether this is a list of ascending head numbers below ``heads``."""
    if not isinstance(values, list):
        return False
    for number in values:
        if type(number) is not int or not 0 <= number < heads:
            return False
    ascending = sorted(set(values))
    return ascending == values
