"""The description that a checkpoint has beside its weights: what is needed to rebuild, compare and trace a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from hydractl.errors import InputError
from hydractl.files.circuit_answer import HeadCount
from hydractl.files.fingerprints import Entry, checked
from hydractl.files.header import CHECKPOINT_SCHEMA
from hydractl.files.results import Count, Record
from hydractl.files.version import __version__
from hydractl.heads.mask import MOST_HEADS_OF_ALL, HeadMask
from hydractl.jsonio import shown

DEFAULT_PROMPT = "A photo of a {label}."
"""The default template that makes a prompt of a class name (paper D.3)."""

CHOSEN_BY_CALIBRATE = ("calibration", "threshold", "ood_score", "conformal")
"""The entries of ``extra`` that ``calibrate`` writes; whatever changes the predictions removes them."""


def provenance(
    verb: str, seed: int, inputs: Sequence[str], details: Mapping[str, object], bases: Sequence[str] | None = None
) -> dict[str, object]:
    """Return the record of how a file was made.

    It holds no time, host, user or path, so that the same command writes the same bytes anywhere.

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
        document: dict[str, Any] = {"schema": CHECKPOINT_SCHEMA, **vars(self)}

        # Sites (attention modules) are a list of pairs, since canonical JSON sorts keys but their order matters.
        del document["masks"]
        document["sites"] = [[path, heads] for path, heads in self.masks[0].heads.items()]

        # Of each member: what is known of it, with the heads that it keeps at each site.
        document["members"] = []
        for index, mask in enumerate(self.masks):
            known = self.members[index] if self.members else {}
            kept = {path: list(heads) for path, heads in mask.kept.items()}
            document["members"].append({**known, "kept": kept})

        # Rare entries are written only if there is something to write.
        for name in ("prompt", "seen", "origin"):
            if not document[name]:
                del document[name]
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any], origin: str) -> Description:
        """Read a description, the reverse of :meth:`to_json`.

        Args:
            document: the description as read, perhaps from an untrusted file.
            origin: where it was read from, for messages.

        Raises:
            InputError: the document has another schema, or anything in it is missing or malformed; all problems are
                listed.
        """
        if document.get("schema") != CHECKPOINT_SCHEMA:
            raise InputError(f"{origin} has the schema {shown(document.get('schema'))}, expected {CHECKPOINT_SCHEMA!r}")

        # Check each field, and then whether they fit together. Keys of other versions may change what the model
        # answers, so they are not passed over.
        provenance = document.get("provenance")
        version = provenance.get("hydractl") if isinstance(provenance, dict) else None
        hint = None
        if version not in (None, __version__):
            hint = f"hydractl {shown(version)} wrote it: open it with that version"
        broken = f"{origin} has a broken description"
        fields = {key: value for key, value in document.items() if key != "schema"}
        checked_fields = _Document.checked(fields, broken, hint)
        masks, problems = _read_masks(checked_fields)
        if problems:
            raise InputError(broken, hint, problems)

        # All fields are taken over as they are, but for the sites, which the masks hold, and three that change form.
        attributes = {name: getattr(checked_fields, name) for name in _Document.model_fields if name != "sites"}
        attributes["extra"] = checked_fields.extra.model_dump(exclude_unset=True)
        attributes["members"] = [dict(member.__pydantic_extra__) for member in checked_fields.members]
        attributes["seen"] = tuple(checked(checked_fields.seen, origin))
        return cls(masks=masks, **attributes)


class _Member(Record, extra="allow"):
    """What a description says of a member: the heads that it keeps by site, and whatever else is known of it."""

    __pydantic_extra__: dict[str, Any]
    kept: Mapping[str, Sequence[Count]]


_SiteHeads = Annotated[tuple[str, Annotated[HeadCount, Field(ge=1)]], Field(strict=False)]
"""The path of a site (an attention block) and its number of heads; JSON has a list of both."""


class _Extra(Record, extra="forbid"):
    """The results that are stored with a model, by key."""

    averaging: Any = None
    calibration: Any = None
    conformal: Any = None
    laplace: Any = None
    ood_score: Any = None
    self_check: Any = None
    sparse: Any = None
    threshold: Any = None


class _Document(Record, extra="forbid"):
    """A description as files hold it, but for its schema."""

    kind: Literal["dense", "pruned", "fused"]
    family: str
    family_version: str
    arch: str
    config: dict[str, Any]
    preprocess: dict[str, Any]
    labels: Sequence[str] | None
    sites: Sequence[_SiteHeads]
    layout: Literal["sliced", "zeroed"]
    merge: Sequence[str] | None
    members: Annotated[Sequence[_Member], Field(min_length=1, max_length=1024)]
    extra: _Extra
    provenance: dict[str, Any]
    prompt: Annotated[Sequence[str], Field(min_length=1)] | None = None
    seen: Any = None
    origin: str | None = None


def _read_masks(document: _Document) -> tuple[list[HeadMask], list[str]]:
    """Return the mask of the kept heads of each member, and one line for each contradiction in the document.

    The masks may be used only if there is no line. A site is an attention layer, by its path in the model.
    """
    # The number of heads of each site. These two problems would spoil all checks below.
    heads = dict(document.sites)
    if len(heads) < len(document.sites):
        return [], ["a site is listed twice"]
    if sum(heads.values()) > MOST_HEADS_OF_ALL:  # keeps an untrusted file from filling the memory
        return [], [f"more heads than {MOST_HEADS_OF_ALL} in all"]

    # Kind, members and layout must go together. "sliced" means that removed heads are not stored.
    problems = []
    if document.kind != "fused" and len(document.members) > 1:
        problems.append(f"a {document.kind} model cannot have {len(document.members)} members")
    if document.kind == "fused" and document.layout != "sliced":
        problems.append("a fused model is always sliced")

    # Each member names its kept heads at every site.
    masks = []
    for index, member in enumerate(document.members):
        if set(member.kept) != set(heads):
            problems.append(f"member {index} does not name the kept heads of every site")
            continue
        for path, count in heads.items():
            kept = member.kept[path]
            present = set(kept)
            if kept != [head for head in range(count) if head in present]:  # ascending, each once
                problems.append(f"member {index} keeps {shown(kept)} at {shown(path)}, which has {count} heads")
        masks.append(HeadMask(heads, {path: tuple(member.kept[path]) for path in heads}))
    if document.kind == "dense" and not problems and not all(mask.is_full for mask in masks):
        problems.append("a dense model keeps every head, this one does not")
    return masks, problems
