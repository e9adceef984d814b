"""From what a person writes as MODEL to a model that runs."""

from __future__ import annotations

import functools
import hashlib
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import torch

from hydractl.data.labels import some
from hydractl.data.names import renaming_doubt
from hydractl.errors import InputError, UsageError
from hydractl.families import FAMILIES, classes_of, families_for_folders, get_family
from hydractl.families.base import LoadedModel, ModelFamily
from hydractl.files.atomic import Output
from hydractl.files.checkpoint import FileTensors, TensorSource, write_checkpoint, write_tensors
from hydractl.files.description import DEFAULT_PROMPT, Description, bases_of
from hydractl.files.header import CONVERT, PICKLES
from hydractl.files.state_dict import StateDict, is_state_dict
from hydractl.heads.mask import HeadMask, Site
from hydractl.jsonio import Held, canonical_json
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
    """The options of a command that say something about the models it opens.

    Attributes:
        arch: what a bare safetensors file holds.
        seed: draws the weights of a model that has none (``pretrained=0``).
        max_length: tokens of a text at most; None: what the checkpoint says.
        labels: class names; None: those of the checkpoint.
        prompt: templates that make prompts of the class names of a zero-shot model; empty: those of the checkpoint, or
            the paper's.
        bodies: whether a model without a classifier is one.
    """

    arch: str | None = None
    seed: int = 0
    max_length: int | None = None
    labels: Sequence[str] | None = None
    prompt: Sequence[str] = ()
    bodies: bool = False


@dataclass(frozen=True)
class Source:
    """A model that was found and checked by its header, its weights not yet read.

    Attributes:
        name: what to call it in tables and file names.
        digest: of the file, or of the description and weights of a model that is no single file; or what computes it.
        description: what the model says of itself.
        tensors: its weights; removed heads are always sliced away here, whatever the layout of the file.
        file_bytes: size of the checkpoint file, or None.
        drawn_by: the seed of random weights, else None. What is trained from such weights is no relative of another
            model.
        left: names of tensors beside the weights that belong to another task.
        renamed: what is odd about the names that ``--labels`` gives its classes; None where nothing is.
    """

    name: str
    digest: str | Callable[[], str]
    description: Description
    tensors: TensorSource
    file_bytes: int | None = None
    drawn_by: int | None = None
    left: tuple[str, ...] = ()
    renamed: str | None = None

    @property
    def sha256(self) -> str:
        """The digest; all weights are read for it, once."""
        if isinstance(self.digest, str):
            return self.digest
        return self.digest()

    @property
    def lineage(self) -> list[str]:
        """The digests of the model and of those that it goes back to, the nearest first."""
        bases = bases_of(self.description.provenance)
        return [self.sha256, *bases]

    @property
    def bases(self) -> list[str]:
        """The lineage of what is trained from it: empty where its weights were drawn."""
        if self.drawn_by is not None:
            return []
        return self.lineage

    # What the library says of the model is asked once: for each answer it builds the model without weights.

    @functools.cached_property
    def family(self) -> ModelFamily:
        """The family of the model."""
        return get_family(self.description.family)

    @functools.cached_property
    def sites(self) -> list[Site]:
        """The attention blocks of the model."""
        config = self.description.config
        return self.family.sites(config)

    @functools.cached_property
    def classes(self) -> int | None:
        """Number of classes; None for a zero-shot model whose classes have not been named; 0 for a body."""
        return classes_of(self.description)


_PLAIN = ModelOptions()


class HeldModel(Held):
    """A model that a Python program has opened, in the place of its reference.

    Args:
        name: what messages call it.
        value: the model.
        keeps: what has to last as long, such as the folder of its file.
    """

    value: Source
    keeps: object

    def __new__(cls, name: str, value: Source, keeps: object = None) -> Self:
        held = super().__new__(cls, name, value)
        held.keeps = keeps
        return held


class HeldRow(Held):
    """A row that a Python program has put together; ``value`` is what :func:`split_model` returns of it."""

    value: tuple[str | None, list[str]]


def split_model(text: str) -> tuple[str | None, list[str]]:
    """Split ``[NAME=]REF[+REF...]`` into its name, None where it has none, and its references.

    What exists as a file is that file, so file names with ``=`` or ``+`` in them work.

    Raises:
        UsageError: for a member without a name.
    """
    # What a Python program has opened is no text to split.
    if isinstance(text, HeldRow):
        return text.value
    if isinstance(text, HeldModel):
        return None, [text]

    name: str | None = None
    refs = _split_at_plus(text)
    before_equals, equals, behind_equals = text.partition("=")
    # Paths, names of a family and options of a reference may hold an equals sign that ends no name.
    is_part_of_reference = any(character in before_equals for character in "/:?")
    is_name = before_equals and not is_part_of_reference
    if equals and is_name and not os.path.exists(refs[0]):
        name = before_equals
        refs = _split_at_plus(behind_equals)
    if not all(refs):
        raise UsageError(f"empty member in MODEL {text!r}", hint="write NAME=a.st+b.st+c.st")
    return name, refs


def _split_at_plus(text: str) -> list[str]:
    """Split at ``+``, but never inside the name of an existing file; of several such names the longest counts."""
    pieces = text.split("+")
    refs = []
    while pieces:
        # As many pieces as make the name of a file; one where no file begins with it.
        count = len(pieces)
        ref = "+".join(pieces)
        # os.path.exists, here and below, because that of pathlib raises for a name that is too long.
        while count > 1 and not os.path.exists(ref):
            count -= 1
            ref = "+".join(pieces[:count])
        refs.append(ref)
        pieces = pieces[count:]
    return refs


def open_source(ref: str, options: ModelOptions = _PLAIN, *, name: str | None = None) -> Source:
    """Find one model by its reference and check everything that its header can tell.

    Args:
        ref: a file, a folder or a name.
        options: what is said about it beside that.
        name: what to call it; None: after the reference.

    Raises:
        InputError: for a file, folder or name that is no model of a supported family, and for one without a classifier.
        UsageError: for a reference that cannot be understood, or an option that the model does not take.
    """
    source = _open_reference(ref, options.arch, options.seed, name)
    if not options.bodies:
        need_classifier(source)
    source = with_max_length(source, options.max_length)
    if options.labels is not None or options.prompt:
        source = with_labels(source, options.labels, options.prompt)
    return source


def need_classifier(source: Source) -> None:
    """Refuse a body.

    Raises:
        InputError: saying how it gets a classifier.
    """
    if source.classes == 0:
        hint = "finetune it on labelled data with --init head, which draws a classifier; eval can also --probe it"
        raise InputError(f"{source.name} has no classifier", hint=hint)


def with_max_length(source: Source, tokens: int | None) -> Source:
    """Return the source with its texts cut at another length; None: as it is.

    Raises:
        UsageError: for a model of images, and a length that the model does not take.
    """
    if tokens is None:
        return source
    description = source.description
    if description.reads != "text":
        raise UsageError(f"--max-length {tokens}: {source.name} reads images, which have no length in tokens")
    preprocess = {**description.preprocess, "max_length": tokens}
    try:
        source.family.collate(preprocess)  # knows what the model takes
    except InputError as error:
        raise UsageError(f"--max-length {tokens}: {source.name}: {error.message}") from error
    return replace(source, description=replace(description, preprocess=preprocess))


def with_labels(source: Source, labels: Sequence[str] | None, prompt: Sequence[str] = ()) -> Source:
    """Return the source with other class names, or other prompts of them. What is made of it keeps them.

    Args:
        source: a classifier, or a zero-shot model.
        labels: class names; None: those it has.
        prompt: templates, for a zero-shot model only; empty: those it has, or the paper's.

    Raises:
        UsageError: for another number of names than the classifier has classes, a prompt where there is a classifier,
            and templates without a place for the name.
        InputError: for names of the classifier in another order.
    """
    description = source.description
    names = description.labels
    if labels is not None:
        names = list(labels)

    # A zero-shot model takes any names, and prompts that ask for them.
    classes = source.family.classes(description.config)
    if classes is None:
        return _with_prompts(source, names, prompt)

    # A classifier takes as many names as it has classes; those it has already tell whether the order may be wrong.
    if prompt:
        raise UsageError(f"--prompt: {source.name} has a classifier of its own and reads no prompts")
    if names is not None and len(names) != classes:
        raise UsageError(f"--labels names {len(names)} classes, {source.name} has {classes}")
    doubt_about_order = None
    if names is not None and description.labels is not None:
        doubt_about_order = renaming_doubt(description.labels, names, source.name)
    description = replace(description, labels=names)
    return replace(source, description=description, renamed=doubt_about_order)


def _with_prompts(source: Source, names: Sequence[str] | None, prompt: Sequence[str]) -> Source:
    """Return a zero-shot model with these classes, each asked for by all templates.

    Args:
        source: the model.
        names: of the classes; None: it has none yet.
        prompt: the templates; empty: those of the checkpoint, or where it has none that of the paper.

    Raises:
        UsageError: for templates without a place for the name.
    """
    description = source.description
    templates = list(prompt or description.prompt or [DEFAULT_PROMPT])
    some_name = "a"
    if names:
        some_name = names[0]
    # Called because it refuses templates that it cannot use.
    source.family.prompts(description.config, description.preprocess, [some_name], templates)
    description = replace(description, labels=names, prompt=templates)
    return replace(source, description=description)


def _open_reference(ref: str, arch: str | None, seed: int, name: str | None) -> Source:
    """Find one model by its reference, and check all that its header can tell.

    Args:
        ref: a model that is open already, a family's name ``FAMILY:NAME``, a folder, or a file, in this order.
        arch: what a file is that does not describe itself; None: not said.
        seed: draws the weights of a model that has none.
        name: what to call it; None: after the reference.

    Raises:
        InputError: for what is no model of a supported family.
        UsageError: for options of a reference that the model does not take.
    """
    # What is no file: an open model, a name of a library, a folder.
    if isinstance(ref, HeldModel):
        return replace(ref.value, name=name or ref.value.name)
    prefix, _, rest = ref.partition(":")
    if rest and prefix in FAMILIES.names:
        return _open_family_name(prefix, rest, seed, name)
    path = Path(ref)
    if os.path.isdir(path):
        return _open_folder(path, name)
    _refuse_files_of_other_kinds(path)

    # A file with an option behind it, such as F.st?cascade=0.
    if not os.path.exists(path):
        file_ref, question_mark, query = ref.rpartition("?")
        if question_mark and os.path.exists(file_ref):
            whole = _open_reference(file_ref, arch, seed, name)
            return _with_cascade_option(whole, query, named=name is not None)
        raise InputError(f"no such model: {ref}", hint=_model_hint(path))

    # A file that describes itself, or one that --arch describes.
    if is_state_dict(path):
        return _open_undescribed(path, StateDict(path), arch, seed, name)
    file = FileTensors(path)
    document = file.header.description
    if document is None:
        return _open_undescribed(path, file, arch, seed, name)
    description = Description.from_json(document, str(path))
    return _source_of_described_file(file, description, name or path.stem)


def _refuse_files_of_other_kinds(path: Path) -> None:
    """Refuse files that are never opened here: exported models, and pickles that hold more than tensors.

    Raises:
        InputError: for such a file, by its suffix.
    """
    if path.suffix in (".onnx", ".pt2"):
        raise InputError(
            f"{path} is an exported file", hint="predict and bench run it; other verbs take the .st file it is of"
        )
    if path.suffix.lower() in PICKLES and not is_state_dict(path):
        raise InputError(f"{path} may hold a pickle, which hydractl never opens", hint=CONVERT)


def open_sources(refs: Sequence[str], options: ModelOptions = _PLAIN) -> list[Source]:
    """Open several references, reporting the problems of all of them at once.

    Files first, which are opened by their headers: a folder or a name may have to be downloaded, drawn or converted,
    which is not begun while a file is missing or broken.

    Returns:
        The models, in the order of their references.

    Raises:
        InputError: with the problems of all files, or where these are whole with those of all others.
        UsageError: for the first reference that cannot be understood.
    """
    indices_of_files: list[int] = []
    indices_of_others: list[int] = []
    for index, ref in enumerate(refs):
        if _must_be_file(ref):
            indices_of_files.append(index)
        else:
            indices_of_others.append(index)

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
    """Return one error for the models that cannot be opened, with the problems of all."""
    if len(failures) == 1:
        return failures[0]
    problems = []
    for failure in failures:
        problems += [failure.message, *failure.problems]
    return InputError(f"{len(failures)} models cannot be opened", hint=failures[0].hint, problems=problems)


def _with_cascade_option(source: Source, query: str, *, named: bool) -> Source:
    """Return the model of ``F.st?cascade=0``, of which all members run for all samples.

    Nothing that was fitted to the cascade is kept.

    Args:
        source: the model of ``F.st``.
        query: what stands behind the question mark.
        named: whether the user has named the model; else its name says that it is the whole one.

    Raises:
        UsageError: for a file without a cascade, and for any other option.
    """
    description = source.description
    has_cascade = "cascade" in description.extra
    turns_cascade_off = has_cascade and _parse_query(query) == {"cascade": 0}  # or false: in Python, False equals 0
    if not turns_cascade_off:
        hint = "of a file with a cascade, F.st?cascade=0 runs all members for all samples"
        raise UsageError(f"{source.name} takes no option {query!r}", hint=hint)
    extra = dict(description.extra)
    for key in ("cascade", "calibration", "threshold", "conformal", "reference"):
        extra.pop(key, None)
    name = source.name
    if not named:
        name = f"{source.name}.whole"
    description = replace(description, extra=extra)
    return replace(source, name=name, description=description)


def _must_be_file(ref: str) -> bool:
    """Return whether a reference can only be that of a file, which may not exist."""
    prefix, _, rest = ref.partition(":")
    if prefix in FAMILIES.names and rest:
        return False
    return not os.path.isdir(ref)


def _model_hint(path: Path) -> str:
    """Name the checkpoints in the folder of a file that does not exist; without any, say what a MODEL can be."""
    near: list[str] = []
    if os.path.isdir(path.parent):
        near = sorted(file.name for file in path.parent.glob("*.st"))
    if near:
        return f"checkpoints there: {some(near, 5)}"
    return f"give a .st file, a published folder, or FAMILY:NAME, FAMILY one of {', '.join(FAMILIES.names)}"


def _open_family_name(family_name: str, rest: str, seed: int, name: str | None) -> Source:
    """Open ``FAMILY:NAME?key=value``, a model that a library knows by name, perhaps with weights that are drawn.

    Args:
        family_name: the family.
        rest: what stands behind the colon.
        seed: draws the weights where ``pretrained`` is false.
        name: what to call the model; None: after the reference.
    """
    model_name, _, query = rest.partition("?")
    options = _parse_query(query)
    family = get_family(family_name)
    loaded = family.load_name(model_name, options, seed)
    if isinstance(loaded, Path):  # the family has it as a file
        return _open_reference(str(loaded), None, seed, name or loaded.stem)
    name_by_default = model_name.replace("/", "_")
    source = _source_of_loaded(family_name, loaded, name or name_by_default)
    if options.get("pretrained") is False:
        return replace(source, drawn_by=seed)
    return source


def _parse_query(query: str) -> dict[str, object]:
    """Read ``a=1&b=true`` with values as YAML scalars; ``pretrained=0`` means False."""
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
    """Open a published folder by the first family that knows its form; it is called after the folder by default."""
    for family in families_for_folders():
        loaded = family.load_folder(path)
        if loaded is None:  # another family may know it
            continue
        name = name or path.resolve().name
        file = loaded.tensors
        if isinstance(file, FileTensors) and file.header.description is not None:
            # Written by hydractl: the heads removed from it are still known, so pruning it again composes.
            description = Description.from_json(file.header.description, str(path))
            return _source_of_described_file(file, description, name)
        return _source_of_loaded(family.name, loaded, name)
    raise InputError(
        f"{path} is not a published model folder of a supported family",
        hint="a folder of timm or transformers holds config.json with its architecture, and model.safetensors; one of "
        "open_clip holds open_clip_config.json and open_clip_model.safetensors",
    )


def _open_undescribed(path: Path, tensors: TensorSource, arch: str | None, seed: int, name: str | None) -> Source:
    """Open weights that do not describe themselves, with ``--arch`` to say what they are.

    Args:
        path: of their file.
        tensors: the weights.
        arch: ``FAMILY:NAME``, perhaps with options behind a question mark; None: not said.
        seed: of the model that is built for its shapes; its weights are not used.
        name: what to call the model; None: after the file.

    Raises:
        InputError: ``arch`` is not said, or the weights are of another architecture.
        UsageError: ``arch`` cannot be read, or its family does not build models by name.
    """
    if arch is None:
        raise InputError(f"{path} does not describe itself", hint=_arch_hint(tensors))
    family_name, _, rest = arch.partition(":")
    family = FAMILIES.get(family_name)
    if family is None or not family.builds_by_name or not rest:
        raise UsageError(
            f"cannot read --arch {arch!r}",
            hint="write --arch timm:NAME, open_clip:ARCH or torchvision:NAME; weights of transformers open as a folder",
        )

    # The model of this name without its weights, and these in their place.
    model_name, _, query = rest.partition("?")
    options = {**_parse_query(query), "pretrained": False}
    loaded = family.load_name(model_name, options, seed)
    assert not isinstance(loaded, Path), "what is built by name is no file"
    loaded = replace(loaded, tensors=tensors)

    # The training script of the library may have noted how it prepared images.
    if isinstance(tensors, StateDict) and tensors.script == family_name:
        preprocess = family.preprocess_of_script(tensors.arguments, model_name, loaded.preprocess)
        loaded = replace(loaded, preprocess=preprocess)
    name_without_suffix, _, _ = path.name.removesuffix(".tar").rpartition(".")
    return _source_of_loaded(family_name, loaded, name or name_without_suffix)


def open_tensors(tensors: TensorSource, arch: str, name: str) -> Source:
    """Return weights that do not describe themselves as a model.

    Args:
        tensors: all of its weights.
        arch: what it is, as ``--arch`` says it.
        name: what to call it.

    Raises:
        InputError: they are not the weights of such a model.
        UsageError: ``arch`` cannot be read.
    """
    path = Path(name)
    return _open_undescribed(path, tensors, arch, 0, name)


def _arch_hint(tensors: TensorSource) -> str:
    """Say how ``--arch`` names a model; where its training script left a note, by that."""
    example = "say what it is, for example: --arch timm:vit_base_patch16_224"
    if not isinstance(tensors, StateDict) or tensors.script is None:
        return example
    shapes = {name: tensors.info(name).shape for name in tensors.names()}
    arch = get_family(tensors.script).arch_of_script(tensors.arguments, shapes)
    if arch is None:
        return example
    value = shlex.quote(f"{tensors.script}:{arch}")
    return (
        f"it was trained as: --arch {value}; with --labels FOLDER its "
        "classes have the names of the folders that it was trained on"
    )


def _source_of_loaded(family_name: str, loaded: LoadedModel, name: str) -> Source:
    """Return the source of a dense model that a family has loaded."""
    family = get_family(family_name)
    sites = family.sites(loaded.config)
    description = Description(
        kind="dense",
        family=family_name,
        family_version=family.version,
        arch=loaded.arch,
        config=loaded.config,
        preprocess=loaded.preprocess,
        labels=loaded.labels,
        masks=[HeadMask.full(sites)],
        origin=loaded.origin,
    )
    tensors = loaded.tensors
    check_tensors(name, tensors, family, description, sites)
    if isinstance(tensors, FileTensors):
        return Source(name, tensors.sha256, description, tensors, tensors.size)
    # Of what is no single file, all weights are read for the digest: once, when somebody asks for it.
    digest = functools.cache(lambda: digest_of(description, tensors))
    return Source(name, digest, description, tensors, left=tuple(loaded.left))


def digest_of(description: Description, tensors: TensorSource) -> str:
    """Return the SHA-256 of a model that is no single file: of its architecture and its weights."""
    architecture = {"arch": description.arch, "config": description.config}
    text = canonical_json(architecture)
    digest = hashlib.sha256(text.encode())
    for tensor_name in tensors.names():
        tensor = tensors.read(tensor_name).contiguous()
        bytes_of_tensor = tensor.reshape(-1).view(torch.uint8)
        digest.update(tensor_name.encode())
        digest.update(bytes_of_tensor.numpy().data)
    return digest.hexdigest()


def _source_of_described_file(file: FileTensors, description: Description, name: str) -> Source:
    """Return the source of a file that describes itself, its removed heads sliced away.

    Raises:
        InputError: its tensors are not those that it describes.
    """
    family = get_family(description.family)
    sites = family.sites(description.config)
    origin = str(file.path)
    has_zeroed_heads = description.layout == "zeroed"
    if not has_zeroed_heads:
        check_tensors(origin, file, family, description, sites)
        return Source(name, file.sha256, description, file, file.size)

    # Its removed heads are zeros: the tensors are those of all heads, and are sliced when they are read.
    all_heads = HeadMask.full(sites)
    description_of_file = replace(description, masks=[all_heads])
    check_tensors(origin, file, family, description_of_file, sites)
    tensors = sliced(file, family, sites, all_heads, description.mask)
    return Source(name, file.sha256, description, tensors, file.size)


def member_source(source: Source, member: int) -> Source:
    """Return one member of a fused checkpoint as a model of its own.

    Returns:
        A pruned model that holds what the fused model holds for this member, averaged weights included.
    """
    masks = source.description.masks
    mask = masks[member]
    stored_once = sites_stored_once(source.tensors, source.family, source.sites)
    stored_mask = held_mask(masks, member, stored_once)
    tensors_of_member = MemberTensors(source.tensors, member)
    tensors = sliced(tensors_of_member, source.family, source.sites, stored_mask, mask)
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
    """Write and commit a model of one member, its removed heads sliced away: a file or a published folder.

    In a folder these heads are zeros.

    Returns:
        The SHA-256 of the weights.
    """
    if not output.is_folder:
        return write_checkpoint(output, tensors, description.to_json())

    # A library that opens the folder knows the shapes of all heads only.
    family = get_family(description.family)
    mask = description.mask
    tensors = zeroed(tensors, family, family.sites(description.config), present=mask, kept=mask)
    folder = output.temporary
    weights_file = family.export_folder(
        folder,
        description.config,
        description.preprocess,
        description.labels,
    )
    with open(folder / weights_file, "wb") as handle:
        digest = write_tensors(handle, tensors, description.to_json())
    output.commit()
    return digest


def pruned(source: Source, mask: HeadMask, layout: str) -> tuple[Description, EditedHeads]:
    """Return description and tensors of the source with only the heads of ``mask``; nothing is written yet.

    Args:
        source: a dense or pruned model.
        mask: the heads to keep, all of them heads that the model has.
        layout: ``sliced`` to cut the other heads away, ``zeroed`` to leave zeros in their places.

    Raises:
        InputError: the mask keeps a head that the model does not have.
    """
    present = source.description.mask
    for path, heads in present.kept.items():
        missing = set(mask.kept[path]).difference(heads)
        if missing:
            raise InputError("the mask keeps heads that the model no longer has")
    if layout == "sliced":
        tensors = sliced(source.tensors, source.family, source.sites, present, mask)
    else:
        tensors = zeroed(source.tensors, source.family, source.sites, present, mask)
    description = replace(
        source.description,
        kind="dense" if mask.is_full else "pruned",
        family_version=source.family.version,
        masks=[mask],
        layout=layout,
        extra={},
    )
    return description, tensors
