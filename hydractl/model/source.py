"""Find the model that a user names as MODEL, check its header, and describe how to read it."""

from __future__ import annotations

import functools
import hashlib
import os
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from hydractl.data.names import renaming_warning
from hydractl.errors import InputError, UsageError, near_path
from hydractl.expressions.models import ModelRef
from hydractl.families import FAMILIES, classes_of, families_for_folder, get_family
from hydractl.families.base import LoadedModel, ModelFamily
from hydractl.files.atomic import Output, storing
from hydractl.files.checkpoint import FileTensors, TensorSource, write_checkpoint, write_tensors
from hydractl.files.description import CHOSEN_BY_CALIBRATE, DEFAULT_PROMPT, Description, bases_of
from hydractl.files.header import CONVERT, PICKLES
from hydractl.files.state_dict import StateDict, is_state_dict
from hydractl.heads.mask import HeadMask, Site
from hydractl.jsonio import canonical_json
from hydractl.model.stored import (
    EditedHeads,
    MemberTensors,
    check_tensors,
    held_mask,
    sites_stored_once,
    sliced,
    zeroed,
)


@dataclass(frozen=True)
class ModelOptions:
    """The options of a command that concern the models it opens.

    Attributes:
        arch: the architecture of a safetensors file that does not describe itself, e.g. ``timm:NAME``.
        seed: seed of the weights of a model that has none (``pretrained=0``).
        max_length: the largest number of tokens of a text; None means what the checkpoint says.
        labels: the class names; None means those of the checkpoint.
        prompt: templates that make prompts from the class names of a zero-shot model. Empty means those of the
            checkpoint, or else that of the paper.
        bodies: whether a model without a classifier (a body) is accepted.
    """

    arch: str | None = None
    seed: int = 0
    max_length: int | None = None
    labels: Sequence[str] | None = None
    prompt: Sequence[str] = ()
    bodies: bool = False


@dataclass(frozen=True)
class Source:
    """A model that was found and whose header was checked, but whose weights are not read yet.

    Attributes:
        name: the name of the model in tables and file names.
        digest: the SHA-256 of the file, or, for a model that is no single file, a function that computes the SHA-256 of
            its description and weights.
        description: what the model says about itself.
        tensors: the weights. Removed heads are sliced away here, even if the file stores them as zeros.
        file_bytes: the size of the checkpoint file, or None.
        drawn_by: the seed from which random weights were drawn, else None. A model that is trained from such weights is
            no relative of other models.
        left: names of tensors in the file that belong to another task and are not used.
        warnings: what is odd about it: about class names, or what an earlier version of hydractl stored in the file and
            this one does not use.
    """

    name: str
    digest: str | Callable[[], str]
    description: Description
    tensors: TensorSource
    file_bytes: int | None = None
    drawn_by: int | None = None
    left: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def sha256(self) -> str:
        """The SHA-256 of the model. If it is no single file, all weights are read for it, once."""
        return self.digest if isinstance(self.digest, str) else self.digest()

    @property
    def lineage(self) -> list[str]:
        """The digests of this model and of the models from which it was made, the nearest first."""
        return [self.sha256, *bases_of(self.description.provenance)]

    @property
    def bases(self) -> list[str]:
        """The lineage of a model that is trained from this one; empty if the weights of this one are random."""
        return self.lineage if self.drawn_by is None else []

    # These are cached, because the library has to build the model without weights to answer.

    @functools.cached_property
    def family(self) -> ModelFamily:
        """The family of the model."""
        return get_family(self.description.family)

    @functools.cached_property
    def sites(self) -> list[Site]:
        """The attention blocks of the model."""
        return self.family.sites(self.description.config)

    @functools.cached_property
    def classes(self) -> int | None:
        """The number of classes; None for a zero-shot model without class names yet; 0 for a body (no classifier)."""
        return classes_of(self.description)


_PLAIN = ModelOptions()

_WAYS_TO_NAME = (
    "write --arch timm:NAME or open_clip:ARCH, with ?num_classes=10, &img_size=64 (timm) for other images; "
    "torchvision's vit_b_16 is timm:vit_base_patch16_224; weights of transformers open as a folder"
)


def open_source(ref: str | ModelRef, options: ModelOptions = _PLAIN, *, name: str | None = None) -> Source:
    """Find one model by its reference, and check everything that its header can tell.

    Args:
        ref: a file, a folder, or a name such as ``timm:NAME``.
        options: the options of the command that concern the model.
        name: the name of the model; None means a name made from the reference.

    Raises:
        InputError: if the reference is no model of a supported family, or the model has no classifier and needs one.
        UsageError: if the reference cannot be parsed, or an option does not suit the model.
    """
    source = _open_reference(ref, options.arch, options.seed, name)
    if not options.bodies:
        need_classifier(source)
    source = with_max_length(source, options.max_length)
    if options.labels is not None or options.prompt:
        source = with_labels(source, options.labels, options.prompt)
    return source


def warnings_of_opening(sources: Iterable[Source]) -> list[str]:
    """Return what is odd about models as they were opened, without repetition."""
    warnings = [warning for source in sources for warning in source.warnings]
    return list(dict.fromkeys(warnings))


def need_classifier(source: Source) -> None:
    """Refuse a body, which is a model without a classifier.

    Raises:
        InputError: saying how the model can get a classifier.
    """
    if source.classes == 0:
        hint = "finetune it on labelled data with --init head, which draws a classifier; --train-last 0 trains it alone"
        raise InputError(f"{source.name} has no classifier", hint=hint)


def with_max_length(source: Source, tokens: int | None) -> Source:
    """Return the model with texts cut at ``tokens`` tokens; unchanged if this is None.

    Raises:
        UsageError: if the model reads images, or cannot take texts of this length.
    """
    if tokens is None:
        return source
    description = source.description
    if description.reads != "text":
        raise UsageError(f"--max-length {tokens}: {source.name} reads images, which have no length in tokens")
    preprocess = {**description.preprocess, "max_length": tokens}
    try:
        source.family.collate(preprocess)  # called because it checks the length
    except InputError as error:
        raise UsageError(f"--max-length {tokens}: {source.name}: {error.message}") from error
    return replace(source, description=replace(description, preprocess=preprocess))


def with_labels(source: Source, labels: Sequence[str] | None, prompt: Sequence[str] = ()) -> Source:
    """Return the source with other class names or other prompts. Models that are made from it keep them.

    Args:
        source: a classifier, or a zero-shot model.
        labels: the class names; None means no change.
        prompt: templates of prompts, only for a zero-shot model. Empty means the present ones, or that of the paper.

    Raises:
        UsageError: if the number of names is not that of the classifier's classes, if a classifier gets a prompt, or if
            a template has no place for the name.
        InputError: if the names are those of the classifier in another order.
    """
    description = source.description
    names = description.labels if labels is None else list(labels)

    # A zero-shot model accepts any names and prompts.
    classes = source.family.classes(description.config)
    if classes is None:
        templates = list(prompt or description.prompt or [DEFAULT_PROMPT])
        some_name = names[0] if names else "a"
        # Called because it refuses templates that cannot be used.
        source.family.prompts(description.config, description.preprocess, [some_name], templates)

        # What was fitted to other classes or prompts does not fit these. A calibration may go by the order of the
        # classes.
        extra = description.extra
        left_out: list[str] = []
        if description.labels is not None:
            names_before = list(description.labels)
            templates_before = list(description.prompt or [DEFAULT_PROMPT])
            if names != names_before or templates != templates_before:
                left_out = [key for key in CHOSEN_BY_CALIBRATE if key in extra]
        warnings = source.warnings
        if left_out:
            extra = {key: value for key, value in extra.items() if key not in left_out}
            warnings += (
                f"{source.name}: {', '.join(left_out)} left out: fitted to other classes, to another order of them, "
                "or to other prompts",
            )
        description = replace(description, labels=names, prompt=templates, extra=extra)
        return replace(source, description=description, warnings=warnings)

    # A classifier needs one name for each class, and no prompt. Compare the names with those it may already have.
    if prompt:
        raise UsageError(f"--prompt: {source.name} has a classifier of its own and reads no prompts")
    if names is not None and len(names) != classes:
        raise UsageError(f"--labels names {len(names)} classes, {source.name} has {classes}")
    warnings = source.warnings
    if names is not None and description.labels is not None:
        renaming = renaming_warning(description.labels, names, source.name)
        warnings += (renaming,) if renaming else ()
    return replace(source, description=replace(description, labels=names), warnings=warnings)


def _open_reference(ref: str | ModelRef, arch: str | None, seed: int, name: str | None) -> Source:
    """Find one model by its reference, and check everything that its header can tell.

    Args:
        ref: a model that is open already, a name ``FAMILY:NAME``, a folder, or a file; tried in this order.
        arch: the architecture of a file that does not describe itself; None if the user did not say it.
        seed: seed of the weights of a model that has none.
        name: the name of the model; None means a name made from the reference.

    Raises:
        InputError: if the reference is no model of a supported family.
        UsageError: if the model does not take the options in the reference.
    """
    # References that are no file: a model that is already open in Python, a name of a library, a folder.
    if isinstance(ref, ModelRef):
        if ref.held is not None:
            return replace(ref.held, name=name or ref.held.name)
        ref = ref.text
    prefix, _, rest = ref.partition(":")
    if rest and prefix in FAMILIES.names:
        return _open_family_name(prefix, rest, seed, name)
    path = Path(ref)
    if os.path.isdir(path):
        return _open_folder(path, name)
    refuse_exported(path)
    if path.suffix.lower() in PICKLES and not is_state_dict(path):
        raise InputError(f"{path} may hold a pickle, which hydractl never opens", hint=CONVERT)
    if not os.path.exists(path):
        raise InputError(f"no such model: {ref}", hint=_model_hint(path))

    # A file that describes itself, or a file that --arch describes.
    if is_state_dict(path):
        return _open_undescribed(path, StateDict(path), arch, seed, name)
    file = FileTensors(path)
    document = file.header.description
    if document is None:
        return _open_undescribed(path, file, arch, seed, name)
    description = Description.from_json(document, str(path))
    return _source_of_described_file(file, description, name or path.stem)


def refuse_exported(path: Path) -> None:
    """Refuse a file of ``export``: hydractl writes such files, and other programs open them.

    Raises:
        InputError: for such a file; its ending tells.
    """
    if path.suffix in (".onnx", ".pt2"):
        raise InputError(
            f"{path} is an exported file, which hydractl writes and does not open",
            hint="give the .st file it was made of; docs/deploy.md has the lines that run and time it",
        )


def open_sources(refs: Sequence[str | ModelRef], options: ModelOptions = _PLAIN) -> list[Source]:
    """Return the models of several references, or report the problems of all of them at once.

    Files are opened first, because only their headers are read. A folder or a name may have to be downloaded, drawn or
    converted, which must not begin while a file is missing or broken.

    Returns:
        The models, in the order of their references.

    Raises:
        InputError: with the problems of all files; if there are none, with the problems of all other references.
        UsageError: for the first reference that cannot be parsed.
    """
    indices_of_files = [index for index, ref in enumerate(refs) if _must_be_file(str(ref))]
    indices_of_others = [index for index in range(len(refs)) if index not in indices_of_files]

    # Open all files, then all others; stop after the files if some of them cannot be opened.
    sources: dict[int, Source] = {}  # by the index of the reference
    for indices in (indices_of_files, indices_of_others):
        failures: list[InputError] = []
        for index in indices:
            try:
                sources[index] = open_source(refs[index], options)
            except InputError as error:
                failures.append(error)
        if failures:
            raise _error_of_all(failures)
    return [sources[index] for index in range(len(refs))]


def _error_of_all(failures: Sequence[InputError]) -> InputError:
    """Return one error that lists the problems of all models that cannot be opened."""
    if len(failures) == 1:
        return failures[0]
    problems = []
    for failure in failures:
        problems += [failure.message, *failure.problems]
    return InputError(f"{len(failures)} models cannot be opened", hint=failures[0].hint, problems=problems)


def _must_be_file(ref: str) -> bool:
    """Return whether a reference can only mean a file (which may not exist): no family's name and no folder."""
    prefix, _, rest = ref.partition(":")
    if prefix in FAMILIES.names and rest:
        return False
    return not os.path.isdir(ref)


def _model_hint(path: Path) -> str:
    """Return a hint for a missing file: a name of a library, names like it in its folder, or what a MODEL can be."""
    looks_like_a_name = path.name == str(path) and not path.suffix
    if looks_like_a_name:
        return f"a name of a library has its prefix, such as timm:{path}; else give a .st file or a published folder"
    families = ", ".join(FAMILIES.names)
    return near_path(path) or f"give a .st file, a published folder, or FAMILY:NAME, FAMILY one of {families}"


def _open_family_name(family_name: str, rest: str, seed: int, name: str | None) -> Source:
    """Return the model ``FAMILY:NAME?key=value`` that a library knows by name; its weights may be drawn at random.

    Args:
        family_name: the name of the family.
        rest: the text after the colon.
        seed: seed of the weights if ``pretrained`` is false.
        name: the name of the model; None means a name made from the reference.
    """
    model_name, _, query = rest.partition("?")
    options = _parse_query(query)
    family = get_family(family_name)
    loaded = family.load_name(model_name, options, seed)
    if isinstance(loaded, Path):  # the family stores this model as a file
        return _open_reference(str(loaded), None, seed, name or loaded.stem)
    name_by_default = model_name.replace("/", "_")
    source = _source_of_loaded(family_name, loaded, name or name_by_default)
    if options.get("pretrained") is False:
        return replace(source, drawn_by=seed, warnings=())  # these are about weights that somebody has trained
    return source


def _parse_query(query: str) -> dict[str, object]:
    """Parse ``a=1&b=true`` into a dict; values are YAML scalars, and ``pretrained=0`` means False.

    Raises:
        UsageError: if a part has no key or no ``=``, or a value cannot be read.
    """
    import yaml

    options: dict[str, object] = {}
    if not query:
        return options
    for part in query.split("&"):
        key, equals, value = part.partition("=")
        if not equals or not key:
            hint = "write timm:NAME?key=value&key=value"
            raise UsageError(f"cannot read {part!r} in the options of a model", hint=hint)
        try:
            options[key] = yaml.safe_load(value)
        except (yaml.YAMLError, ValueError):  # the latter for a date such as 2020-13-45
            raise UsageError(f"cannot read the value of {part!r} in the options of a model") from None
    if "pretrained" in options:
        options["pretrained"] = bool(options["pretrained"])
    return options


def _open_folder(path: Path, name: str | None) -> Source:
    """Return the model in a published folder, opened by the first family of models that recognises the folder.

    Args:
        path: the folder.
        name: the name of the model; None means the name of the folder.

    Raises:
        InputError: if no family recognises the folder.
    """
    for family in families_for_folder(path):
        loaded = family.load_folder(path)
        if loaded is None:  # not a folder of this family
            continue
        model_name = name or path.resolve().name
        file = loaded.tensors
        if isinstance(file, FileTensors) and file.header.description is not None:
            # Written by hydractl. Its description says which heads were removed, so the model can be pruned again.
            description = Description.from_json(file.header.description, str(path))
            return _source_of_described_file(file, description, model_name)
        return _source_of_loaded(family.name, loaded, model_name)
    raise InputError(
        f"{path} is not a published model folder of a supported family",
        hint="a folder of timm or transformers holds config.json with its architecture, and model.safetensors; one of "
        "open_clip holds open_clip_config.json and open_clip_model.safetensors",
    )


def _open_undescribed(path: Path, tensors: TensorSource, arch: str | None, seed: int, name: str | None) -> Source:
    """Return the model of weights that do not describe themselves, as the architecture that ``--arch`` names.

    Args:
        path: the file of the weights.
        tensors: the weights.
        arch: ``FAMILY:NAME``, with or without options after a question mark; None if the user did not say it.
        seed: seed of a model that is built only for its shapes; its weights are not used.
        name: the name of the model; None means the name of the file.

    Raises:
        InputError: if ``arch`` is None, or the weights belong to another architecture.
        UsageError: if ``arch`` cannot be parsed, or its family does not build models by name.
    """
    if arch is None:
        raise InputError(f"{path} does not describe itself", hint=arch_hint(tensors))
    family_name, _, rest = arch.partition(":")
    family = FAMILIES.get(family_name)
    if family is None or not family.builds_by_name or not rest:
        raise UsageError(
            f"cannot read --arch {arch!r}",
            hint=_WAYS_TO_NAME,
        )

    # Build the model of this name without its weights, to put the weights of the file in their place.
    model_name, _, query = rest.partition("?")
    options = {**_parse_query(query), "pretrained": False}
    without_weights = family.load_name(model_name, options, seed)
    assert not isinstance(without_weights, Path), "what is built by name is no file"

    loaded = family.with_weights(without_weights, model_name, tensors)
    # An error here means that the weights are of another architecture, so it says which one they show.
    name_without_suffix, _, _ = path.name.removesuffix(".tar").rpartition(".")  # "a.pth.tar" gives "a"
    try:
        return _source_of_loaded(family_name, loaded, name or name_without_suffix)
    except InputError as error:
        error.hint = error.hint or arch_hint(tensors)
        raise


def open_tensors(tensors: TensorSource, arch: str, name: str) -> Source:
    """Return weights that do not describe themselves as a model.

    Args:
        tensors: all weights of the model.
        arch: the architecture, as ``--arch`` takes it.
        name: the name of the model.

    Raises:
        InputError: if the weights belong to another architecture.
        UsageError: if ``arch`` cannot be parsed.
    """
    return _open_undescribed(Path(name), tensors, arch, 0, name)


def arch_hint(tensors: TensorSource) -> str:
    """Return a hint at how to use ``--arch``, with the architecture if a training script has noted it."""
    # The scripts of both libraries train models that the family of timm opens.
    if isinstance(tensors, StateDict) and tensors.script is not None:
        shapes = {name: tensors.info(name).shape for name in tensors.names()}
        arch = get_family("timm").arch_of_script(tensors.arguments, shapes)
        if arch is not None:
            value = shlex.quote(f"timm:{arch}")
            return (
                f"it was trained as: --arch {value}; with --labels FOLDER its "
                "classes have the names of the folders that it was trained on"
            )
    return _WAYS_TO_NAME


def _source_of_loaded(family_name: str, loaded: LoadedModel, name: str) -> Source:
    """Return a model that a family has loaded, described and with its tensors checked; dense unless heads are removed.

    Raises:
        InputError: if the tensors are not those of the architecture.
    """
    # Describe the model. The library may already have removed heads; a site is an attention block.
    family = get_family(family_name)
    sites = family.sites(loaded.config)
    removed: list[tuple[str, int]] = []
    for index, site in enumerate(sites):
        removed += [(site.path, head) for head in loaded.removed.get(index, ())]
    description = Description(
        kind="pruned" if removed else "dense",
        family=family_name,
        family_version=family.version,
        arch=loaded.arch,
        config=loaded.config,
        preprocess=loaded.preprocess,
        labels=loaded.labels,
        masks=[HeadMask.full(sites).without(removed)],
        origin=loaded.origin,
    )

    # A single file has its own digest.
    tensors = loaded.tensors
    check_tensors(name, tensors, family, description, sites)
    if isinstance(tensors, FileTensors):
        return Source(name, tensors.sha256, description, tensors, tensors.size, warnings=tuple(loaded.warnings))

    # There is no single file, so the digest needs all weights. It is computed once, when it is first needed.
    digest = functools.cache(lambda: digest_of(description, tensors))
    return Source(name, digest, description, tensors, left=tuple(loaded.left), warnings=tuple(loaded.warnings))


def digest_of(description: Description, tensors: TensorSource) -> str:
    """Return the SHA-256 of the architecture and the weights of a model that is no single file."""
    text = canonical_json({"arch": description.arch, "config": description.config})
    digest = hashlib.sha256(text.encode())
    for tensor_name in tensors.names():
        tensor = tensors.read(tensor_name).contiguous()
        bytes_of_tensor = tensor.reshape(-1).view(torch.uint8)  # the memory of the numbers, without a copy
        digest.update(tensor_name.encode())
        digest.update(bytes_of_tensor.numpy().data)
    return digest.hexdigest()


def _source_of_described_file(file: FileTensors, description: Description, name: str) -> Source:
    """Return the model in a file that describes itself, without its removed heads.

    Raises:
        InputError: if its tensors are not those that it describes.
    """
    family = get_family(description.family)
    sites = family.sites(description.config)
    origin = str(file.path)
    if description.layout != "zeroed":
        check_tensors(origin, file, family, description, sites)
        return Source(name, file.sha256, description, file, file.size)

    # Removed heads are stored as zeros: the tensors have the shapes of all heads, and are sliced when they are read.
    all_heads = HeadMask.full(sites)
    description_of_file = replace(description, masks=[all_heads])
    check_tensors(origin, file, family, description_of_file, sites)
    tensors = sliced(file, family, sites, all_heads, description.mask)
    return Source(name, file.sha256, description, tensors, file.size)


def member_source(source: Source, member: int) -> Source:
    """Return one member of a fused checkpoint as a model with one member.

    Args:
        source: the fused checkpoint.
        member: the index of the member.

    Returns:
        A pruned model (dense if no head was removed). It has the weights that the fused model uses for this member;
        weights that were merged by averaging are the averaged ones.
    """
    masks = source.description.masks
    mask = masks[member]

    # If heads are stored once for all members, the file holds more heads than this member has. Slice these away.
    stored_once = sites_stored_once(source.tensors, source.family, source.sites)
    stored_mask = held_mask(masks, member, stored_once)
    tensors_of_member = MemberTensors(source.tensors, member)
    tensors = sliced(tensors_of_member, source.family, source.sites, stored_mask, mask)

    # Nothing that was fitted to the fused model holds for a member alone.
    description = replace(
        source.description,
        kind="dense" if mask.is_full else "pruned",
        masks=[mask],
        merge=None,
        members=(),
        extra={},
    )
    name = f"{source.name}.member{member}"
    return replace(source, name=name, description=description, tensors=tensors, file_bytes=None)


def write_model(output: Output, description: Description, tensors: TensorSource) -> str:
    """Write and commit a model with one member, as a file or as a published folder.

    Args:
        output: the file or folder. A file holds only the heads that are kept. In a folder the removed heads are zeros,
            because the library that opens it expects the shapes of all heads.
        description: the description of the model.
        tensors: the weights, without the removed heads.

    Returns:
        The SHA-256 of the weights.
    """
    # A file.
    if not output.is_folder:
        return write_checkpoint(output, tensors, description.to_json())

    # A folder: put zeros in the place of removed heads, let the family write its files, then write the weights.
    family = get_family(description.family)
    mask = description.mask
    with_zeros = zeroed(tensors, family, family.sites(description.config), present=mask, kept=mask)
    return write_folder(output, description, with_zeros, beside={})


def write_folder(
    output: Output,
    description: Description,
    tensors: TensorSource,
    beside: Mapping[str, bytes],
) -> str:
    """Write and commit a published folder; return the SHA-256 of its weights.

    Args:
        output: the folder.
        description: the description of the model.
        tensors: the weights, with zeros where heads were removed.
        beside: further files by name.
    """
    folder = output.temporary
    with storing(output.path):
        family = get_family(description.family)
        weights_file = family.export_folder(folder, description.config, description.preprocess, description.labels)
        with open(folder / weights_file, "wb") as handle:
            digest = write_tensors(handle, tensors, description.to_json())
        for name, content in beside.items():
            (folder / name).write_bytes(content)
    output.commit()
    return digest


def pruned(source: Source, mask: HeadMask, layout: str) -> tuple[Description, EditedHeads]:
    """Return description and tensors of a model in which only the heads of ``mask`` are kept. Nothing is written.

    Args:
        source: a dense or pruned model.
        mask: the heads to keep; the model must have all of them.
        layout: ``sliced`` removes the other heads from the weights, ``zeroed`` sets them to zero.

    Raises:
        InputError: if the mask keeps a head that the model does not have.
    """
    # Check that the model has all heads to keep, in each of its attention blocks.
    present = source.description.mask
    for path, heads in present.kept.items():
        missing = set(mask.kept[path]).difference(heads)
        if missing:
            raise InputError("the mask keeps heads that the model no longer has")

    edit = sliced if layout == "sliced" else zeroed
    tensors = edit(source.tensors, source.family, source.sites, present, mask)

    # Nothing that was fitted to the model with more heads still holds.
    description = replace(
        source.description,
        kind="dense" if mask.is_full else "pruned",
        family_version=source.family.version,
        masks=[mask],
        layout=layout,
        extra={},
    )
    return description, tensors
