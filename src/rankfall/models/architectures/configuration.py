"""Under which names configurations keep their numbers, and how a number is read from a configuration.

The tables are data, tried in order: the first name that is there wins. A new spelling is one more name here, and
nothing in this package asks for a model by its name. `ALSO_...` names further sizes that a model of reduced size must
reduce as well; none of them stands for the model's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

WIDTH = (
    "hidden_size",
    "d_model",
    "n_embd",
    "dim",
    "embed_dim",
    "hidden_dim",
    "model_dim",
    "emb_dim",
    "hidden_sizes",
    "embedding_dim",
)
# The width that attention is given, where that is not the model's own: a bottleneck, two streams at once, latents.
ATTENTION_WIDTH = ("true_hidden_size", "attention_hidden_size", "d_latents")
ALSO_WIDTHS = (
    "embedding_size",
    "encoder_hidden_size",
    "decoder_hidden_size",
    "projection_dim",
    "word_embed_proj_dim",
    "d_embed",
    "cross_attention_hidden_size",
    "text_embed_dim",
    "encoder_dim",
    "decoder_dim",
    "lru_width",
    "d_latents",
)

HEADS = (
    "num_attention_heads",
    "n_head",
    "num_heads",
    "n_heads",
    "encoder_attention_heads",
    "decoder_attention_heads",
    "attention_heads",
    "num_self_attention_heads",
    "conf_num_attention_heads",
    "resampler_n_heads",
    "decoder_num_attention_heads",
)
ALSO_HEADS = ("encoder_num_attention_heads",)

KEY_VALUE_HEADS = (
    "num_key_value_heads",
    "num_kv_heads",
    "n_head_kv",
    "kv_n_heads",
    "num_query_groups",
    "multi_query_group_num",
    "resampler_n_kv_heads",
)
ALSO_KEY_VALUE_HEADS = ("encoder_num_key_value_heads", "decoder_num_key_value_heads")

# Attention shares the width with a convolution: heads are divided by this, and each takes half of what it could.
HEADS_DIVIDED_BY = ("head_ratio",)

# A true value says: one key/value head for all.
MULTI_QUERY_SWITCHES = ("multi_query",)

# Latent attention splits the query/key head into a part without and a part with rotary positions. It comes first:
# such configurations set `head_dim` to the rotary part alone.
HEAD_SIZE_SUMS = (("qk_nope_head_dim", "qk_rope_head_dim"),)

HEAD_SIZE = (
    "qk_head_dim",
    "head_dim",
    "d_head",
    "d_kv",
    "key_dim",
    "attention_head_dim",
    "kv_channels",
    "attention_head_size",
    "dim_head",
    "resampler_head_dim",
)

LAYERS = (
    "num_hidden_layers",
    "n_layer",
    "num_layers",
    "encoder_layers",
    "n_layers",
    "decoder_layers",
    "num_self_attends_per_block",
    "conf_num_hidden_layers",
    "decoder_num_hidden_layers",
    "depth",
    "num_decoder_layers",
    "num_blocks",
    "num_spatial_layers",
    "resampler_depth",
    "l_layers",
)
ALSO_LAYERS = ("num_encoder_layers", "encoder_num_hidden_layers")

# Stages of a pyramid of resolutions: their sizes are lists with one entry per stage.
STAGE_LAYERS = ("depths", "depth", "blocks_per_stage")

# Lists with one number per layer.
PER_LAYER = ("num_attention_heads_per_layer", "num_key_value_heads_per_layer", "head_dim_per_layer")

# Vectors from which keys and values, or queries, are read, and the part of a key that is not.
LATENT_RANK = ("kv_lora_rank",)
QUERY_LATENT = ("q_lora_rank",)
ROTARY_PART = ("qk_rope_head_dim",)

FEED_FORWARD = (
    "intermediate_size",
    "ffn_dim",
    "d_ff",
    "d_inner",
    "n_inner",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "ffn_hidden_size",
    "mlp_dim",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "feed_forward_size",
)
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
EXPERTS_PER_TOKEN = ("num_experts_per_tok",)
VOCABULARY = ("vocab_size", "decoder_vocab_size", "text_vocab_size", "vocab_size_per_layer_input")

# Only what bounds the length of a sequence: `n_positions` of a model with relative positions does not.
POSITIONS = ("max_position_embeddings",)

IMAGE_SIZE = ("image_size",)
CHANNELS = ("num_channels", "in_channels", "in_chans")
PATCH_SIZE = ("patch_size",)
MEL_BINS = ("num_mel_bins", "input_feat_per_channel", "feature_size", "num_mels")
AUDIO_POSITIONS = ("max_source_positions",)

# How many keys a query sees at most: windows, chunks, the best by an index.
KEYS_AT_MOST = (
    "sliding_window",
    "local_attention",
    "attention_chunk_size",
    "attention_window",
    "index_topk",
    "sliding_window_size",
    "attention_window_size",
)
# Lists of the layers that hold attention, or something else that only some layers have.
LAYER_INDICES = ("attn_layer_indices", "hybrid_layer_ids", "full_attn_idxs", "attention_layer_ids")

# Where one of these is set, `num_heads` counts channels of a recurrence and not attention heads.
RECURRENCE = ("state_size", "qk_dim_factor")
ATTENTION_ONLY_HEADS = ("num_attention_heads", "encoder_attention_heads", "n_head")

# A configuration made of parts: the part that reads text is the one people mean, then the rest as declared.
PARTS = (
    "text_config",
    "language_config",
    "llm_config",
    "thinker_config",
    "vlm_config",
    "decoder",
    "decoder_config",
    "text_encoder",
    "encoder",
    "encoder_config",
    "vision_config",
    "backbone_config",
)


def number(configuration: object, names: Sequence[str]) -> int | None:
    """The first of these entries that is a positive whole number; of a list with one per stage, the last."""
    for name in names:
        found = value(configuration, name)
        if is_stages(found):
            found = found[-1]
        if isinstance(found, int) and not isinstance(found, bool) and found > 0:
            return found
    return None


def value(configuration: object, name: str) -> Any:
    """The entry of a table or the attribute of an object, or None. Where reading it raises, what was stored there.

    Configurations whose layers differ refuse to give one number for all; the stored one is that of most layers.
    """
    if isinstance(configuration, Mapping):
        return configuration.get(name)
    try:
        return getattr(configuration, name, None)
    except Exception:
        return vars(configuration).get(name)


def is_stages(found: Any) -> bool:
    """Whether this is a list of whole numbers, one per stage or layer."""
    return isinstance(found, (list, tuple)) and len(found) > 0 and all(type(item) is int for item in found)


def head_size(configuration: object) -> int | None:
    """The size of a query/key head, where the configuration names one."""
    for names in HEAD_SIZE_SUMS:
        pieces = [number(configuration, (name,)) for name in names]
        if all(pieces):
            return sum(piece for piece in pieces if piece)
    return number(configuration, HEAD_SIZE)
