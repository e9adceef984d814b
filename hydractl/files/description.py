"""The description that a checkpoint has beside its weights: what is needed to rebuild, compare and trace a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydractl.errors import InputError
from hydractl.files.fingerprints import Entry, checked
from hydractl.files.header import CHECKPOINT_SCHEMA
from hydractl.files.version import __version__
from hydractl.heads.mask import MOST_HEADS, MOST_HEADS_OF_ALL, HeadMask
from hydractl.jsonio import json_list, shown

DEFAULT_PROMPT = "A photo of a {label}."
"""The default template that makes a prompt of a class name (paper D.3)."""

CHOSEN_BY_CALIBRATE = ("calibration", "threshold", "ood_score", "conformal")
"""The entries of ``extra`` that ``calibrate`` writes; whatever changes the predictions removes them."""
KINDS = ("dense", "pruned", "fused")
LAYOUTS = ("sliced", "zeroed")


def provenance(
    verb: str, seed: int, inputs: Sequence[str], details: Mapping[str, object], bases: Sequence[str] | None = None
) -> dict[str, object]:
    """Return the record of how a file was made, without clock, host, user or path.

    Args:
        verb: the command that made the file.
        seed: the seed of all random draws.
        inputs: SHA-256 of every input.
        details: the settings that decided the result, already resolved (method, budget, data fingerprint, ...);
            settings that are None are left out.
        bases: SHA-256 of the checkpoints whose weights the file goes back to, the nearest first; None: the inputs. They
            are recorded only if they differ from the inputs.
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
    """Return the SHA-256 of the checkpoints that a file goes back to, the nearest first; empty if it does not say."""
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
        arch, config: the architecture, and everything else that is needed to build the model without weights.
        preprocess: how raw samples become inputs.
        labels: class names in the order of the classifier, or None if unknown.
        prompt: for a zero-shot model, the templates that make prompts of ``labels``; None for the default.
        masks: the kept heads, one mask per member; dense and pruned models have one mask.
        layout: ``sliced`` (removed heads are gone) or ``zeroed`` (the library's shapes, with zeros for removed heads).
        merge: for a fused model, the parts that were averaged.
        members: for a fused model, one mapping per member with its SHA-256 and provenance.
        extra: results stored with the model, for example the self-check of fusing.
        provenance: how the file was made: inputs by SHA-256, settings, versions, seed; no clock, host or path.
        seen: the samples that its circuits, trainings and calibrations saw (:mod:`hydractl.files.fingerprints`).
        origin: where its original weights were published, as ``ORG/NAME@COMMIT`` of the hub, or None.
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
        """The only mask of a model with one member."""
        return self.masks[0]

    @property
    def reads(self) -> str:
        """The kind of sample that the model reads: ``image`` or ``text``."""
        if self.preprocess.get("kind") == "text":
            return "text"
        return "image"

    @property
    def params_nonzero(self) -> int | None:
        """The number of nonzero parameters of a model with pruned weights; None if it has none or does not say."""
        sparse = self.extra.get("sparse")
        if not isinstance(sparse, Mapping):
            return None
        count = sparse.get("params_nonzero")
        if type(count) is not int:
            return None
        return count

    def to_json(self) -> dict[str, Any]:
        """Return the description as the JSON object ``hydractl.checkpoint/1``; the reverse of :meth:`from_json`."""
        # Sites are a list of pairs, since canonical JSON sorts keys but the order of sites matters.
        sites = [[path, heads] for path, heads in self.masks[0].heads.items()]

        # The entries that every description has.
        document: dict[str, object] = {
            "schema": CHECKPOINT_SCHEMA,
            "kind": self.kind,
            "family": self.family,
            "family_version": self.family_version,
            "arch": self.arch,
            "config": dict(self.config),
            "preprocess": dict(self.preprocess),
            "labels": json_list(self.labels),
            "sites": sites,
            "layout": self.layout,
            "merge": json_list(self.merge),
            "members": self._members_json(),
            "extra": dict(self.extra),
            "provenance": dict(self.provenance),
        }

        # Rare entries are written only if there is something to write.
        if self.prompt is not None:
            document["prompt"] = list(self.prompt)
        if self.seen:
            document["seen"] = [dict(entry) for entry in self.seen]
        if self.origin is not None:
            document["origin"] = self.origin
        return document

    def _members_json(self) -> list[dict[str, object]]:
        """Return an object for each member: what is known of it, with the heads that it keeps at each site."""
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
        """Read a description, the reverse of :meth:`to_json`.

        First the fields are checked, then the masks and the values: each step relies on the one before.

        Args:
            document: the description as read, perhaps from an untrusted file.
            origin: where it was read from, for messages.

        Raises:
            InputError: the document has another schema, or anything in it is missing or malformed; all problems are
                listed.
        """
        if document.get("schema") != CHECKPOINT_SCHEMA:
            raise InputError(f"{origin} has the schema {shown(document.get('schema'))}, expected {CHECKPOINT_SCHEMA!r}")

        # Keys of other versions may change what the model answers, so they are not passed over.
        unknown = _unknown_keys(document)
        if unknown:
            written_by = _version_of(document)
            raise InputError(
                f"{origin} holds what this version of hydractl does not know",
                hint=f"open it with the version that wrote it{written_by}",
                problems=[f"unknown key {key}" for key in unknown],
            )

        # Missing or mistyped fields; without them, values can be read safely.
        problems = _field_problems(document)
        if problems:
            raise InputError(f"{origin} has a broken description", problems=problems)

        # Wrong values, and masks that cannot be read.
        masks, problems_of_masks = _read_masks(document)
        problems = _value_problems(document) + problems_of_masks
        if problems:
            raise InputError(f"{origin} has a broken description", problems=problems)

        # The document is sound: take its fields as they are.
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
            members=[_without_kept_heads(member) for member in document["members"]],
            extra=document["extra"],
            provenance=document["provenance"],
            prompt=document.get("prompt"),
            seen=tuple(checked(document.get("seen"), origin)),
            origin=document.get("origin"),
        )


_SPARSE_KEYS = ("schema", "prompt", "seen", "origin")
"""The keys that a description may have beside the required ones."""
_EXTRA_KEYS = (
    *("self_check", "averaging", "laplace", "sparse", "reference"),
    *CHOSEN_BY_CALIBRATE,
)
"""The keys of ``extra``: those that are written, and ``reference``, which opens with a warning."""
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


def _unknown_keys(document: Mapping[str, Any]) -> list[str]:
    """Return the keys of a description and of its ``extra`` that this version does not know, as messages show them."""
    unknown = [shown(key) for key in document if key not in _REQUIRED and key not in _SPARSE_KEYS]
    extra = document.get("extra")
    if isinstance(extra, dict):
        unknown += [f"{shown(key)} of 'extra'" for key in extra if key not in _EXTRA_KEYS]
    return unknown


def _version_of(document: Mapping[str, Any]) -> str:
    """Return the end of a hint that names the version of hydractl that wrote a file; empty if it does not say."""
    record = document.get("provenance")
    if not isinstance(record, dict) or not isinstance(record.get("hydractl"), str):
        return ""
    return f": {shown(record['hydractl'])}"


def _field_problems(document: Mapping[str, Any]) -> list[str]:
    """List the required fields that are missing, then those that have the wrong type."""
    missing = []
    mistyped = []
    for key, kind in _REQUIRED.items():
        if key not in document:
            missing.append(f"{key!r} is missing")
        elif not isinstance(document[key], kind):
            mistyped.append(f"{key!r} is not of the right type")
    return missing + mistyped


def _without_kept_heads(member: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a member without its kept heads, which are in its mask."""
    return {key: value for key, value in member.items() if key != "kept"}


def _value_problems(document: Mapping[str, Any]) -> list[str]:
    """List wrong values in a document whose fields have the right types, one line for each."""
    problems = []
    kind = document["kind"]
    members = len(document["members"])

    # Values of single fields.
    if kind not in KINDS:
        problems.append(f"unknown kind {shown(kind)}")
    if document["layout"] not in LAYOUTS:
        problems.append(f"unknown layout {shown(document['layout'])}")
    for key in ("labels", "merge"):
        if not _are_texts(document[key] or []):
            problems.append(f"{key!r} holds something that is not a string")
    if "prompt" in document and not _are_templates(document["prompt"]):
        problems.append("'prompt' is not a list of templates")
    if not isinstance(document.get("origin"), str | None):
        problems.append("'origin' is no text")

    # Values that do not fit together.
    if not members:
        problems.append("it has no members")
    if kind in ("dense", "pruned") and members > 1:
        problems.append(f"a {kind} model cannot have {members} members")
    if kind == "fused" and document["layout"] != "sliced":
        problems.append("a fused model is always sliced")
    return problems


def _are_texts(values: Sequence[Any]) -> bool:
    """Return whether all values are texts."""
    return all(isinstance(value, str) for value in values)


def _are_templates(prompt: Any) -> bool:
    """Return whether a value is a list of prompt templates, or null for none."""
    if prompt is None:
        return True
    if not isinstance(prompt, list) or not prompt:
        return False
    return _are_texts(prompt)


def _read_masks(document: Mapping[str, Any]) -> tuple[list[HeadMask], list[str]]:
    """Return the mask of each member, and a line for everything that is wrong with the masks.

    A member for which a line is returned has no mask in the list; without any line, every member has one.
    """
    heads, problems = _read_heads(document["sites"])
    if heads is None:
        return [], problems

    # Limit the number of members before reading them, as the file may not be trusted.
    members = document["members"]
    if len(members) > _MOST_MEMBERS:
        problems.append(f"{len(members)} members (the limit is {_MOST_MEMBERS})")
        return [], problems

    # Read the mask of each member.
    masks = []
    for index, member in enumerate(members):
        kept, problems_of_member = _read_kept_heads(index, member, heads)
        problems += problems_of_member
        if not problems_of_member:
            masks.append(HeadMask(heads, kept))

    # A dense model is one that has lost nothing.
    are_full = all(mask.is_full for mask in masks)
    if document["kind"] == "dense" and not are_full:
        problems.append("a dense model keeps every head, this one does not")
    return masks, problems


def _read_kept_heads(index: int, member: Any, heads: Mapping[str, int]) -> tuple[dict[str, tuple[int, ...]], list[str]]:
    """Return the heads that a member keeps at each site, and a line for each site whose heads are malformed.

    Args:
        index: the index of the member, for messages.
        member: the entry of the member in the description.
        heads: the number of heads of each site (attention block), by its path.
    """
    kept = None
    if isinstance(member, dict):
        kept = member.get("kept")
    if not isinstance(kept, dict) or set(kept) != set(heads):
        return {}, [f"member {index} does not name the kept heads of every site"]

    # The heads of each site must be heads that the site has.
    kept_heads = {}
    problems = []
    for path, count in heads.items():
        if _are_heads(kept[path], count):
            kept_heads[path] = tuple(kept[path])
        else:
            problems.append(f"member {index} keeps {shown(kept[path])} at {shown(path)}, which has {count} heads")
    return kept_heads, problems


def _read_heads(sites: Sequence[Any]) -> tuple[dict[str, int] | None, list[str]]:
    """Return the number of heads of each site by its path, and a line for everything that is wrong.

    The number of heads is None instead if the sites are so broken that no mask could be read with them.

    Args:
        sites: pairs of the path of a site (an attention block) and its number of heads.
    """
    problems: list[str] = []
    heads: dict[str, int] = {}
    for pair in sites:
        if not _is_site(pair):
            return None, [*problems, f"site {shown(pair)} is not a pair of path and head count"]
        path, count = pair
        if path in heads or count < 1:
            problems.append(f"site {shown(pair)} is listed twice or has no heads")
        heads[path] = count

    # Limits keep an untrusted file from filling the memory.
    most = max(heads.values(), default=0)
    in_all = sum(heads.values())
    if most > MOST_HEADS or in_all > MOST_HEADS_OF_ALL:
        problems.append(f"more heads than {MOST_HEADS} at one site or {MOST_HEADS_OF_ALL} in all")
        return None, problems
    return heads, problems


def _is_site(pair: Any) -> bool:
    """Return whether a value is a pair of a text and a whole number."""
    if not isinstance(pair, list) or len(pair) != 2:
        return False
    path, count = pair
    return isinstance(path, str) and type(count) is int


def _are_heads(values: Any, heads: int) -> bool:
    """Return whether a value is a list of head numbers below ``heads``, each once and in ascending order."""
    if not isinstance(values, list):
        return False
    for number in values:
        if type(number) is not int or not 0 <= number < heads:
            return False
    ascending = sorted(set(values))
    return ascending == values
