"""What configurations call the numbers that we look for: data, tried in order, the first that is there wins.

A new spelling is one more name here. Nothing in this package asks for a model by its name.
"""

from __future__ import annotations

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
    "d_latents",
    "embedding_dim",
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

KEY_VALUE_HEADS = (
    "num_key_value_heads",
    "num_kv_heads",
    "n_head_kv",
    "kv_n_heads",
    "num_query_groups",
    "multi_query_group_num",
    "resampler_n_kv_heads",
)

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
    "kv_channels",
    "attention_head_dim",
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

# Stages of a pyramid of resolutions: their sizes are lists with one entry per stage.
STAGE_LAYERS = ("depths", "depth", "blocks_per_stage")

# Lists with one number per layer.
PER_LAYER = ("num_attention_heads_per_layer", "num_key_value_heads_per_layer", "head_dim_per_layer")

LATENT_RANK = ("kv_lora_rank",)

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
