"""Whether stored weights are those of the model that a file says it is, and finite; those of a model in training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from hydractl.errors import InputError, NonFiniteError, UsageError
from hydractl.families import classes_of
from hydractl.families.base import ModelFamily, attention_names
from hydractl.files.checkpoint import FileTensors, TensorSource, is_finite
from hydractl.files.description import Description
from hydractl.files.header import same_names, torch_dtype
from hydractl.heads.mask import HeadMask, Site
from hydractl.model.members import MemberTensors, held_mask, sites_stored_once


def check_tensors(origin: str, tensors: TensorSource, family: ModelFamily, description: Description) -> None:
    """Names and shapes of every member against the library's own model and the kept heads."""
    sites = family.sites(description.config)
    if [(s.path, s.heads) for s in sites] != list(description.masks[0].heads.items()):
        raise InputError(f"{origin} describes other attention blocks than its architecture {description.arch} has")
    family.collate(description.preprocess)  # refuses what it does not understand
    problems: list[str] = []
    classes = classes_of(description)
    if description.labels is not None and classes is not None and len(description.labels) != classes:
        problems.append(f"{len(description.labels)} labels for {classes} classes")
    if description.prompt is not None:
        try:
            family.prompts(description.config, ["a"], description.prompt)
        except UsageError as error:  # what a file says is no usage
            problems.append(error.message)
    stock = family.build(description.config).state_dict()
    once = sites_stored_once(tensors, family, sites)
    for index in range(len(description.masks)):
        member = MemberTensors(tensors, index)
        problems += same_names(member, stock, origin)
        shapes = _expected_shapes(stock, family, sites, held_mask(description.masks, index, once))
        for tensor_name in sorted(set(member) & set(shapes)):
            found = member.info(tensor_name)
            if found.shape != shapes[tensor_name]:
                problems.append(f"tensor {tensor_name!r} is {list(found.shape)}, expected {list(shapes[tensor_name])}")
            if not torch_dtype(found).is_floating_point:
                problems.append(f"tensor {tensor_name!r} is {found.dtype}, expected a floating point number")
    problems += _misplaced(tensors, description, family, sites)
    if problems:
        raise InputError(f"{origin} does not hold the weights of {description.arch}", problems=problems[:40])


def _misplaced(
    tensors: TensorSource, description: Description, family: ModelFamily, sites: Sequence[Site]
) -> list[str]:
    """Names that no member would read, and what some members own and others share: tensors, or parts of a site."""
    if description.kind != "fused":
        return [f"unexpected tensor {n!r}" for n in tensors.names() if n.startswith("members.")][:10]
    views = [MemberTensors(tensors, m) for m in range(len(description.masks))]
    read = {stored for view in views for stored in view.stored.values()}
    unread = [f"unexpected tensor {n!r}" for n in tensors.names() if n not in read]
    owned = {n for view in views for n, stored in view.stored.items() if n != stored}
    shared = {n for view in views for n, stored in view.stored.items() if n == stored}
    once = sites_stored_once(tensors, family, sites)
    mixed = [
        f"the attention of {site.path} belongs partly to all members and partly to one"
        for site in sites
        if site.path in once and attention_names(family, owned, sites, site)
    ]
    both = [f"tensor {n!r} belongs to all members and to one" for n in sorted(owned & shared)]
    return unread[:10] + mixed[:10] + both[:10]


def _expected_shapes(
    stock: Mapping[str, Tensor], family: ModelFamily, sites: Sequence[Site], mask: HeadMask
) -> dict[str, tuple[int, ...]]:
    tensors = dict(stock)
    for site in sites:
        family.write(tensors, site, family.read(stock, site).select(mask.kept[site.path]))
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def check_finite(name: str, tensors: TensorSource) -> None:
    """Refuse weights with NaN or infinity.

    Raises:
        NonFiniteError: naming the first such tensor.
    """
    if isinstance(tensors, FileTensors):  # the pass that hashed the file has seen it
        bad = iter(tensors.scan().not_finite)
    else:
        bad = (tensor_name for tensor_name in tensors.names() if not is_finite(tensors.read(tensor_name)))
    for tensor_name in bad:
        raise NonFiniteError(f"{name}: tensor {tensor_name!r} holds NaN or infinity")
