"""The names of modules and tensors of each kind of encoder in transformers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hydractl.families.base import AttentionLayout


@dataclass(frozen=True)
class EncoderLayout:
    """The module names of one kind of encoder.

    Attributes:
        layers: name of the list of layers in the encoder.
        heads: names of the attention's tensors, relative to the attention block.
        core: name of the module that computes attention, relative to the attention block; empty means the block.
        core_class: how the class name of that module ends, e.g. ``SelfAttention``.
        norm: name of the norm before the attention, relative to the layer; empty if the norm comes after.
        block: name of the attention block, relative to the layer.
        embeddings: names of the modules before the first layer.
    """

    layers: str
    heads: AttentionLayout
    core: str
    core_class: str
    norm: str = ""
    block: str = "attention"
    embeddings: tuple[str, ...] = ("embeddings", "embeddings_project", "pre_layrnorm")


_PROJECTIONS = AttentionLayout(("q_proj", "k_proj", "v_proj"), "o_proj")
_BERT = EncoderLayout(
    layers="encoder.layer",
    heads=AttentionLayout(("self.query", "self.key", "self.value"), "output.dense"),
    core="self",
    core_class="SelfAttention",
)
_DISTILBERT = replace(
    _BERT,
    layers="transformer.layer",
    heads=AttentionLayout(("q_lin", "k_lin", "v_lin"), "out_lin"),
    core="",
)
_VIT = EncoderLayout(
    layers="layers",
    heads=_PROJECTIONS,
    core="",
    core_class="Attention",
    norm="layernorm_before",
)
_DINOV2 = replace(_VIT, layers="encoder.layer", norm="norm1")
_CLIP = replace(
    _VIT,
    layers="encoder.layers",
    heads=AttentionLayout(_PROJECTIONS.qkv, "out_proj"),
    norm="layer_norm1",
    block="self_attn",
)
_MODERN = replace(_VIT, heads=AttentionLayout(("Wqkv",), "Wo"), norm="attn_norm", block="attn")
_DEBERTA = EncoderLayout(
    layers="encoder.layer",
    heads=AttentionLayout(
        ("self.query_proj", "self.key_proj", "self.value_proj"),
        "output.dense",
        positions=("self.pos_query_proj", "self.pos_key_proj"),
    ),
    core="self",
    core_class="DisentangledSelfAttention",
    embeddings=("embeddings", "encoder.rel_embeddings", "encoder.LayerNorm"),
)
_LLAMA = EncoderLayout(
    layers="layers",
    heads=replace(_PROJECTIONS, q_norm="q_norm", k_norm="k_norm"),
    core="",
    core_class="Attention",
    norm="input_layernorm",
    block="self_attn",
    embeddings=("embed_tokens",),
)
_PHI3 = replace(_LLAMA, heads=AttentionLayout(("qkv_proj",), "o_proj"))
_GPT2 = EncoderLayout(
    layers="h",
    heads=AttentionLayout(("c_attn",), "c_proj", transposed=True),
    core="",
    core_class="Attention",
    norm="ln_1",
    block="attn",
    embeddings=("wte", "wpe"),
)

# Layouts by the name of the base model in the classifier, with which the path of every site starts. If several layouts
# have the same name, a suffix after a dot distinguishes them.
LAYOUTS = {
    "bert": _BERT,
    "roberta": _BERT,
    "electra": _BERT,
    "ernie": _BERT,
    "distilbert": _DISTILBERT,
    "vit": _VIT,
    "deit": _VIT,
    "dinov2": _DINOV2,
    "dinov2_with_registers": _DINOV2,
    "model": _MODERN,
    "deberta": _DEBERTA,
    "model.self_attn": _LLAMA,
    "model.qkv_proj": _PHI3,
    "transformer": _GPT2,
    "vision_model": _CLIP,
    "text_model": _CLIP,
}
