"""What the columns of language models' tables mean: of runs, of comparisons over seeds, of audits."""

from __future__ import annotations

LAYER_COLUMN = "token_rank_layer_"
"""Followed by the number of a layer, 0 for the embeddings: the token rank there."""

AUDIT_COLUMNS = {
    "token_rank_last": "effective rank of the tokens, scaled to length one, after the last layer and the final norm, "
    "mean over passages",
    "token_rank_pooled_last": "the same of the tokens of all passages together, as they are",
    "head_rank_used": "effective rank of the query/key form W_Q W_K^T, median over heads",
    "head_rank_needed": "fewest directions of its scores with which a head's attention is within 0.01 nats a row, "
    "median over heads",
    "heads_at_limit": "share of heads that need all the rank they have",
    "value_rank_used": "effective rank of the value/output form W_V W_O, median over heads",
    "attention_entropy": "entropy of a row of attention over the most that its mask allows, mean over heads",
    "first_token_mass": "weight of attention on the first token of the passage, mean over heads",
    "sink_heads": "share of heads with more than 30 % of their weight on the first token",
    "idle_heads": "share of heads that do nothing: their weight rests on one token, or they write almost nothing",
    "mse_lower_bound": "floor by theory: least error of one bare layer of such heads at finding the nearer of two "
    "points",
    "synthetic_error": "error of paper A's trained cells at this share r/d and this number of heads, interpolated; "
    "answering nothing costs 1",
    "audit_tokens": "held-out tokens that the audit read",
    "audit_seconds": "what the audit took",
}
"""What a row of results has of an audit, besides the token rank of every layer."""

TEXT_COLUMNS = AUDIT_COLUMNS | {
    "corpus": "the text that was trained on, by a hash of its content",
    "domain": "the text that was trained on, by name",
    "tokenizer": "bytes, or a byte-pair encoding trained on the corpus",
    "vocabulary": "distinct tokens of the corpus",
    "budget": "what was kept equal, and what was solved for",
    "width": "width d of the tokens",
    "layers": "attention layers L",
    "layer": "number of the layer, 0 for the embeddings",
    "heads": "heads H of a layer",
    "key_heads": "heads with keys and values of their own",
    "rank": "query/key rank r of each head",
    "value_rank": "width of a head's values",
    "times_width": "H r / d",
    "rank_over_width": "r / d",
    "feed_forward": "width of the feed-forward",
    "activation": "between the matrices of the feed-forward",
    "rotary_base": "slowest period of rotary positions, over 2 pi",
    "tied": "whether the embedding is the output map",
    "context": "tokens of a sequence",
    "optimizer": "what moves the weights",
    "weight_decay": "share of the rate by which matrices shrink",
    "clip": "longest gradient",
    "warm_up": "share of the run over which the rate rises",
    "seeds": "models that the mean is over",
    "nats_per_byte": "loss on held-out text, mean over seeds where there are several",
    "nats_per_byte_margin": "half of its 95 % interval, by the deviation over seeds that all shapes of the setting "
    "have in common",
    "excess": "what the shape costs over the best of its setting, as a share of that",
    "excess_margin": "half of the 95 % interval of that difference, by the deviation over seeds that all shapes of "
    "the setting have in common; none for the best, and where every shape has one seed",
    "told_from_best": "whether the difference is beyond that",
    "variant": "what tells the setting from others of the same text, budget, width and depth",
    "nats_per_byte_deviation": "its standard deviation over seeds; none for one seed",
    "nats_per_byte_low": "lower end of its 95 % interval over seeds (Student's)",
    "nats_per_byte_high": "upper end of its 95 % interval over seeds (Student's)",
    "nats_per_byte_error": "standard error of the loss over windows of held-out text",
    "held_out_over_training": "loss by token on held-out text over that on the last steps' batches, mean over seeds",
    "nats_per_token": "the same loss by token",
    "unigram_nats_per_byte": "what held-out text costs a model that knows token frequencies alone",
    "training_nats_per_token": "loss on the last steps' batches",
    "tokens_trained": "tokens in all steps",
    "training_flops": "operations of the whole run",
    "step_seconds": "seconds of a training step, median over seeds",
    "level": "nats per byte that are to be reached",
    "tokens": "tokens trained on until held-out text costs no more than the level",
    "token_rank": "effective rank of the tokens, scaled to length one, after the layer, mean over passages",
    "missing": "why there is no audit, or what of it could not be had",
}


def is_audit_column(name: str) -> bool:
    """Whether a column of a row comes from an audit."""
    return name in AUDIT_COLUMNS or name.startswith(LAYER_COLUMN)


def meaning_of_layer(layers: int) -> dict[str, str]:
    """What the columns of token rank by layer mean, for models of at most so many layers."""
    return {f"{LAYER_COLUMN}{layer}": f"token rank after layer {layer}" for layer in range(layers + 1)} | {
        f"{LAYER_COLUMN}0": "token rank of the embeddings"
    }
