"""What the columns of a report's tables mean: one place for all reports, so that every number is explained alike."""

from __future__ import annotations

from rankfall.catalogue import MEASURES
from rankfall.figures.base import Reproduction

COLUMNS: dict[str, str] = {
    "layer": "how many blocks the tokens have passed; 0 is the embeddings",
    "depth": "the layer over the number of layers: 0 is the embeddings, 1 the last layer",
    "text": "number of the passage, from 0",
    "position": "place of the token in its passage, from 0",
    "head": "number of the head in its layer, from 0",
    "kv_head": "number of the keys and values that the head reads; fewer than heads where they are shared",
    "log10_mu": "decimal logarithm of mu, exact far below machine precision",
    "log10_relative_mu": "decimal logarithm of relative mu, exact far below machine precision",
    "most": "the most that each rank can be: tokens or width, whichever is less, one less when the mean is taken off",
    "residual_effective_rank": "effective rank of what is left when the mean token is taken off",
    "residual_energy_rank": "energy rank of what is left when the mean token is taken off",
    "effective_rank_low": "lower end of the 95 % bootstrap interval over passages",
    "effective_rank_high": "upper end of the 95 % bootstrap interval over passages",
    "energy_rank_low": "lower end of the 95 % bootstrap interval over passages",
    "energy_rank_high": "upper end of the 95 % bootstrap interval over passages",
    "median": "median over passages, by logarithms",
    "low": "lower end of the 95 % bootstrap interval of the median over passages",
    "high": "upper end of the 95 % bootstrap interval of the median over passages",
    "unit_relative_mu": "relative mu of the tokens scaled to length one: below 0.1 a variant counts as collapsed",
    "unit_energy_rank": "energy rank of the tokens scaled to length one: below 2 a variant counts as collapsed",
    "rankme": "effective rank of all these vectors together, neither scaled nor centred (RankMe)",
    "rows": "vectors that were decomposed together",
    "drawn_from": "vectors that there were; more than 2048 are drawn from at random",
    "norm_ratio": "length of the token over the median length in its passage",
    "energy_share": "share of the passage's squared length that this token holds",
    "coordinate": "the coordinate in which the token is largest",
    "coordinate_share": "share of the token's squared length in that coordinate",
    "chaotic": "tokens so large that the rounding of scores decides who attends to whom: the row says nothing",
    "temperature": "scores are divided by it before the softmax; 1 is the model's own",
    "width": "width d of the tokens",
    "heads": "attention heads H of the layer",
    "head_dim": "width r of a head: the most that its query/key rank can be",
    "structural_rank": "the largest rank that a head can have: min(head size, query latent, key latent + rotary)",
    "q_latent": "size of the vector from which queries are read; 0 for none",
    "kv_latent": "size of the vector from which keys and values are read; 0 for none",
    "rope_dims": "coordinates of a key that do not come from its latent",
    "output_gate": "median of what multiplies attention's output before W_O, which the value/output form has in it",
    "key_dim": "width of a key head",
    "kv_heads": "key/value heads",
    "cached": "numbers of one token's keys and values in a layer, which a decoder caches",
    "latent": "numbers in a latent from which the keys and values of all heads would be read",
    "by_weights": "share of the energy of the joint key/value map that a latent of this size keeps",
    "on_tokens": "the same of keys and values on the tokens read, about their mean",
    "on_others": "the same on passages other than those on which the latent was chosen",
    "tokens_read": "tokens that were read, of all passages",
    "weights_90": "smallest latent that keeps 90 % of the energy of the joint key/value map, by weights",
    "weights_99": "smallest latent that keeps 99 % of it",
    "weights_999": "smallest latent that keeps 99.9 % of it",
    "tokens_effective_rank": "effective rank of keys and values together on the tokens read, about their mean",
    "tokens_90": "smallest latent that keeps 90 % of the energy of keys and values on the tokens read",
    "tokens_99": "smallest latent that keeps 99 % of it",
    "tokens_999": "smallest latent that keeps 99.9 % of it",
    "others_90": "the same for 90 %, with the latent chosen on half of the passages and measured on the other half",
    "others_99": "the same for 99 %; empty where no latent of theirs keeps so much",
    "others_999": "the same for 99.9 %",
    "others_most": "the most that latents chosen on the other half of the passages keep",
    "keys_99": "smallest latent that keeps 99 % of the energy of the keys alone, on the tokens read",
    "values_99": "smallest latent that keeps 99 % of the energy of the values alone, on the tokens read",
    "previous": "share of the energy of a layer's latent (90 % by weights) that the latent of the layer before keeps",
    "chance": "what a random space of that size would keep",
    "value_dim": "width of a head's values: the most that its value/output rank can be",
    "qk_rank": "singular values of the query/key form above d · 2^-23 of the largest",
    "ov_rank": "singular values of the value/output form above d · 2^-23 of the largest",
    "qk_effective_rank": "exponential of the entropy of the singular values of the query/key form",
    "ov_effective_rank": "exponential of the entropy of the singular values of the value/output form",
    "qk_energy_rank": "exponential of the entropy of the squared singular values of the query/key form",
    "ov_energy_rank": "exponential of the entropy of the squared singular values of the value/output form",
    "qk_norm": "Frobenius norm of the query/key form",
    "ov_norm": "Frobenius norm of the value/output form",
    "offset": "distance between the query token and the key token at which a rotary head was probed",
    "mse_lower_bound": "least squared error with which a layer of this shape, skip connection included, can find the "
    "nearer of two orthonormal points (A-thm2), whatever its weights",
    "share": "effective rank of the query/key form over the most that it can be",
    "tokens": "tokens N of the passage",
    "predicted_rate": "factor per layer by which pure attention under this mask shrinks mu in the end; with"
    " learned sinks relative to the tokens' size",
    "predicted_first_token_uniform": "mean weight on the first token if attention were uniform on the mask",
    "predicted_first_token_rotary": "the same if it fell with the distance as fast as rotary positions let it",
    "predicted_first_token_carried": "mean share of the first token in all tokens by such layers so far, uniform",
    "predicted_first_token_carried_rotary": "the same with rotary decay",
    "sink_logit_least": "least logit of the learned sinks of this layer's heads",
    "sink_logit_median": "median logit of the learned sinks of this layer's heads",
    "sink_logit_most": "largest logit of the learned sinks of this layer's heads",
    "radius": "steps in which the best placed token reaches every token",
    "roots": "tokens from which every token is reached",
    "measured": "factor per layer by which mu fell in this run, at its end",
    "second eigenvalue": "the factor that linear theory predicts for the end: second eigenvalue of uniform attention",
    "theorem's bound": "the factor that B-thm1 proves, where its hypotheses hold",
}
DEFINITIONS: dict[str, str] = {one.name: one.definition for one in MEASURES} | COLUMNS


TRAINED = {
    "points": "points N of a sequence",
    "layers": "attention layers L",
    "multiplier": "copies m of a standard attention, averaged: H r = m d columns of heads",
    "rank": "query/key rank r of each head",
    "mean": "mean over seeds of the lowest 100-step mean of the training loss",
    "spread": "largest minus smallest of these over seeds",
    "tolerance": "by how much ours may differ from the published point: 3 % of it, or the spread if that is larger",
    "same_weights_fresh": "error of the very same weights on data never trained on",
    "trained_fresh": "mean over seeds of the error of models that saw new data in every step",
    "trained_fresh_best": "the lowest of these",
    "trained_fresh_spread": "largest minus smallest of these",
    "runs": "seeds trained on the repeated sample",
    "runs_fresh": "seeds trained on new data in every step",
    "diverged": "seeds whose loss became infinite or undefined",
    "seed": "number of the random stream",
    "mse_best": "lowest 100-step mean of the training loss",
    "mse_fresh": "error of the final weights on data never trained on",
    "value_norm_max": "largest spectral norm of a head's value-output map, divided by m",
}

QUARTILES = {25: "first quartile", 50: "median", 75: "third quartile"}
HEADS = {
    "norm": "Frobenius norm of K Q^T over the root of d",
    "angle": "angle of K Q^T to the identity, in degrees",
    "spectral": "spectral norm of K Q^T",
    "frobenius": "Frobenius norm of K Q^T",
}

SHARED = {
    "published": "the value read off the paper's figure",
    "ours": "the value that this run gave",
    "agrees": "whether ours is within the stated tolerance of the published one",
    "claim": "a statement that could have failed",
    "holds": "whether it held",
    "evidence": "the number that decided",
    "dim": "width d",
    "mse": "mean squared error",
    "predicted": "the value that theory gives",
    "residual": "how far the equation that was solved is from holding",
    "angle": "angle in radians",
}


def definitions_of(figure: Reproduction) -> dict[str, str]:
    """The meaning of each column of a figure's tables; the figure's own words go before those that all share."""
    quartiles = {
        f"qk_{name}_{share}": f"{quartile} over heads: {what}"
        for name, what in HEADS.items()
        for share, quartile in QUARTILES.items()
    }
    return {**DEFINITIONS, **SHARED, **TRAINED, **quartiles, **figure.columns}
