"""The narrow networks of Packed-Ensembles, drawn in the way of the library.

A packed network is alpha times as wide as the model, and its layers are cut into M groups that exchange nothing. Its
embedding, norms and classifier are cut in the same way, so it consists of M networks of alpha / M times the width. Its
loss is the sum of their losses, so each is trained as if it were alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from hydractl.errors import UsageError
from hydractl.families.config_json import LibraryConfig
from hydractl.files.checkpoint import DictTensors
from hydractl.heads.mask import HeadMask
from hydractl.methods.classifiers.one_body import draw_members
from hydractl.methods.packed import PackedOptions
from hydractl.model.source import Source
from hydractl.model.stored import stock_tensors
from hydractl.training.members import MemberMaker


@dataclass(frozen=True)
class Packed(MemberMaker):
    """Makes the narrow networks of Packed-Ensembles."""

    options: PackedOptions

    def sources(self, source: Source, seed: int) -> tuple[Source, ...]:
        """Return the narrow networks that are trained together as members, with random weights.

        Their weights are drawn with ``seed`` and the seeds after it.

        Args:
            source: the wide model, whose weights are random (``drawn_by`` is the seed that drew them, else None).
            seed: the seed of the first member.

        Raises:
            UsageError: the model has weights that were not drawn, which a narrow network cannot take over; or a member
                of this width is not possible.
        """
        if source.drawn_by is None:
            raise UsageError("--ensemble packed draws narrow networks anew", hint="add --init random")
        narrow = self._narrowed(source)
        members = []
        for tensors in draw_members(narrow, self.options.members, seed):
            members.append(replace(narrow, tensors=DictTensors(tensors)))
        return tuple(members)

    def _narrowed(self, source: Source) -> Source:
        """Return the model with the configuration of a narrow member; its tensors are still those of the wide model.

        A member has the share ALPHA / M of each size: with M = 3 and ALPHA = 2, 4 of 6 heads and a width of 256 of 384.

        Raises:
            UsageError: a member of this width is not possible: the model has lost heads, its architecture has no
                narrow form, or ALPHA / M does not divide its sizes.
        """
        name = source.name
        description = source.description
        share = Fraction(str(self.options.alpha)) / self.options.members
        if not description.mask.is_full:
            raise UsageError(f"--ensemble packed: {name} has lost heads", hint="pack the dense model")

        # The configuration of a member; None if the family cannot make one.
        config = source.family.narrowed(description.config, share)
        if config is None:
            raise UsageError(
                f"--ensemble packed: a {description.arch} of {share} of the width is unknown",
                hint="packed are the ViTs of timm",
            )

        # Every size must be exactly the wanted share of the wide size. If a share is no whole number, the two differ.
        wide_sizes = _sizes(source, description.config)
        wanted_sizes = [size * share for size in wide_sizes]
        if _sizes(source, config) != wanted_sizes:
            heads, width, mlp = wide_sizes[0], wide_sizes[1], wide_sizes[-1]
            raise UsageError(
                f"--ensemble packed: {share} of {heads} heads, a width of {width} or MLPs of {mlp} is no whole number",
                hint="choose M and ALPHA so that ALPHA / M of each is one",
            )
        full_mask = HeadMask.full(source.family.sites(config))
        narrow_description = replace(description, config=config, masks=[full_mask], extra={})
        return replace(source, description=narrow_description)


def _sizes(source: Source, config: LibraryConfig) -> list[int]:
    """Return all sizes that a narrow model scales: heads and width of each site, then the sides of the MLPs' matrices.

    E.g. for one block of a ViT-S they are [6, 384, 1536, 384, 384, 1536].

    Args:
        source: the wide model, whose family knows the layout.
        config: the configuration of the model whose sizes are returned, e.g. of a narrow one.
    """
    sizes: list[int] = []
    for site in source.family.sites(config):
        sizes += [site.heads, site.d_model]
    for name, tensor in stock_tensors(source.family, config).items():
        if tensor.dim() == 2 and source.family.part(name) == "mlp":
            sizes += tensor.shape
    return sizes
