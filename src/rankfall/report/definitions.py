"""What the columns of a report's tables mean: one place for all reports, so that every number is explained alike."""

from __future__ import annotations

from rankfall.catalogue import MEASURES

COLUMNS: dict[str, str] = {
    "layer": "how many blocks the tokens have passed; 0 is the embeddings",
    "depth": "the layer over the number of layers: 0 is the embeddings, 1 the last layer",
    "text": "number of the passage, from 0",
    "position": "place of the token in its passage, from 0",
    "head": "number of the head in its layer, from 0",
    "kv_head": "number of the keys and values that the head reads; fewer than heads where they are shared",
    "log10_mu": "decimal logarithm of mu, exact far below machine precision",
    "log10_relative_mu": "decimal logarithm of relative mu, exact far below machine precision",
    "residual_effective_rank": "effective rank of what is left when the mean token is taken off",
    "effective_rank_low": "lower end of the 95 % bootstrap interval over passages",
    "effective_rank_high": "upper end of the 95 % bootstrap interval over passages",
    "norm_ratio": "length of the token over the median length in its passage",
    "energy_share": "share of the passage's squared length that this token holds",
    "coordinate": "the coordinate in which the token is largest",
    "coordinate_share": "share of the token's squared length in that coordinate",
    "temperature": "scores are divided by it before the softmax; 1 is the model's own",
    "width": "width d of the tokens",
    "heads": "attention heads H of the layer",
    "head_dim": "width r of a head: the most that its query/key rank can be",
    "value_dim": "width of a head's values: the most that its value/output rank can be",
    "qk_rank": "singular values of the query/key form above d · 2^-23 of the largest",
    "ov_rank": "singular values of the value/output form above d · 2^-23 of the largest",
    "qk_effective_rank": "exponential of the entropy of the squared singular values of the query/key form",
    "ov_effective_rank": "exponential of the entropy of the squared singular values of the value/output form",
    "qk_norm": "Frobenius norm of the query/key form",
    "ov_norm": "Frobenius norm of the value/output form",
    "offset": "distance between the asking and the asked token at which a rotary head was probed",
    "mse_lower_bound": "least squared error with which a layer of this shape, skip connection included, can find the "
    "nearer of two orthonormal points (A-thm2), whatever its weights",
    "share": "effective rank of the query/key form over the most that it can be",
    "tokens": "tokens N of the passage",
    "predicted_rate": "factor per layer by which pure attention under this mask shrinks mu in the end",
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

OF_FIGURE: dict[str, dict[str, str]] = {
    "amsel/fig5": {
        "degree": "degree of the harmonic polynomial",
        "representing": "largest weight of the function that represents the target",
        "log10_representing": "decimal logarithm of the largest weight of the function that represents the target",
        "log10_published_scaling": "the same, scaled so that the published peaks are met",
        **{f"u_d{d}": f"weight function at that angle, d = {d}" for d in (4, 6, 8, 16, 32, 64)},
    },
    "amsel/random-features": {
        "lower_bound": "error that no rank-one heads of this number go below",
        "excess_at_most": "by how much the error can exceed the least one, since the solution is approximate",
        "condition": "condition number of the system solved",
        "iterations": "steps of conjugate gradients",
        "within_tolerance": "whether ours is near the published point; keys were fitted to it, so it decides nothing",
        "independent": "error with keys independent of queries",
        "signed": "error with keys equal or opposite to queries",
    },
    "amsel/table1": {
        "layers": "layers of the model",
        "kv_heads": "heads that have keys and values of their own",
        "heads_times_rank_over_width": "H r / d: 1 is the common choice",
        "rank_over_width": "r / d",
        "grouped": "whether several query heads share keys",
        "derived": "whether the head size was worked out as d / H, not read",
        "latent": "whether keys go through a narrower latent vector",
        "varies": "whether layers differ",
        "stage": "which stage of a staged model was read",
        "part": "which part of a composite model was read",
    },
    "rankfall/equilibria": {
        "wanted": "rank asked for",
        "rank": "rank found",
        "promised_stable": "whether the family is proved to be stable",
        "rank_tolerance": "singular values below this count as zero",
        "smallest_singular_value": "smallest singular value that counts",
        "next_singular_value": "largest singular value that does not",
        "spectral_radius": "spectral radius of the Jacobian on the tangent space; below 1 is stable",
        "spectral_radius_float64": "the same, in ordinary precision",
        "uncertainty": "how far the spectral radius can be off by rounding",
        "digits": "digits of the arithmetic that decided, where float64 could not",
        "stable": "whether the fixed point is strictly stable",
        "neutral_directions": "directions that neither grow nor shrink",
        "transient_growth": "most that a small disturbance grows before it shrinks",
        "dimension": "dimension of the tangent space",
        "residual": "how far a layer moves the tokens",
        "turns": "times that the twisted state goes around the circle",
        "predicted": "the largest multiplier of the Jacobian by its closed form",
        "measured": "the largest multiplier of the Jacobian, the rigid rotation left out",
    },
    "rankfall/rate-vs-radius": {
        "strongly_connected": "whether every token reaches every token",
        "tail_rate": "second eigenvalue of uniform attention: the factor per layer in the end",
        "bound": "factor per layer that B-thm1 proves",
        "bound_speed": "minus the logarithm of that factor",
        "r_squared": "share of the variance of log mu that a straight line explains",
    },
    "rankfall/vote-quality": {
        "points": "points N to choose among",
        "code_rank": "rank of the code in which the votes are held",
        "predicted": "the asymptotic error of the vote",
    },
    "wu/fig1": {
        "end_angle": "angle at which the second token ends",
        "apart": "whether the two tokens stayed apart",
        "predicted_apart": "whether the closed form of the basin says so",
        "x": "first coordinate of the second token",
        "y": "second coordinate of the second token",
        "multiplier": "factor by which a layer moves a neighbour of the fixed point towards it or away",
        "closed_form": "the value by formula",
    },
    "wu/fig3": {"d_qk": "temperature: scores are divided by its square root before the softmax"},
    "wu/fig4": {
        "full_rank_share": "share of texts whose tokens have full numerical rank",
        "unit_min_singular_value": "smallest singular value of tokens scaled to length one",
    },
}


def definitions_of(figure: str) -> dict[str, str]:
    """The meaning of each column of a figure's tables."""
    quartiles = {
        f"qk_{name}_{share}": f"{quartile} over heads: {what}"
        for name, what in HEADS.items()
        for share, quartile in QUARTILES.items()
    }
    return {**DEFINITIONS, **SHARED, **TRAINED, **quartiles, **OF_FIGURE.get(figure, {})}
