"""The words that reports and documentation use, each with its meaning: one list for the page and for every report."""

from __future__ import annotations

import re
import textwrap

GLOSSARY: dict[str, str] = {
    "ablation": "running a model's own blocks again without some of their parts (norm, residual, "
    "feed-forward), to see which part keeps the tokens apart",
    "alpha": "how fast the spectrum falls: the negative slope of log squared singular value against log index over "
    "the first half of them; of centred tokens this is alpha-ReQ (Agrawal et al. 2022)",
    "attention entropy": "entropy of a row of attention weights, in nats; relative to the logarithm of the keys that "
    "the mask lets the row see, 0 is one key and 1 all alike",
    "attention sink": "a token (mostly the first), or a learned logit beside the keys, on which a head rests more "
    "than 30 % of its weight; told by weights, where a massive token is told by its length",
    "band of a mask": "the diagonals that hold every allowed pair of a mask; attention that follows it costs tokens "
    "times band width instead of tokens squared",
    "cell": "one training run of a sweep, described by plain values (task, width, rank, heads, seed, ...) "
    "that are also its identity",
    "centred view": "tokens minus their mean token: what distinguishes them; its rank is at most one less "
    "than the number of tokens",
    "centred unit view": "every token divided by its length, then minus the mean of these: what distinguishes the "
    "directions of tokens, which a long token cannot hide",
    "claim": "a statement about a figure that can fail, with the number that decided",
    "collapse": "all tokens becoming equal (mu goes to zero) or, with a norm, all pointing in one direction",
    "construction": "explicit weights that realise a theorem, with the error that they must have",
    "control": "the same measurement on something known: random weights, shuffled tokens, random tokens",
    "coverage": "how much of a model's attention was seen while it ran, compared with what was there to see",
    "effective rank": "exponential of the entropy of the singular values over their sum (Roy and Vetterli 2007, "
    '"The effective rank"; RankMe, Garrido et al. 2023, takes it of a whole dataset): how many directions there are, '
    "weak ones counted by their length",
    "energy rank": "exponential of the entropy of the squared singular values over their sum: how many "
    "directions carry the energy; at most the effective rank, and lower the more a few directions dominate",
    "first direction": "the direction that holds the largest share of the tokens' energy; its share is the squared "
    "largest singular value over the sum of all squares, 1 when all tokens lie on one line",
    "equilibrium": "tokens that a layer leaves exactly as they are",
    "error floor": "a lower bound on the mean squared error of one bare attention layer of a given shape, "
    "whatever its weights",
    "fresh data": "new batches in every training step, instead of the same sample over and over",
    "grid": "a TOML file whose lists are crossed into the cells of a sweep",
    "head rank": "the rank r of a head's query/key form K Q^T; at most the width of its queries and keys",
    "hemisphere condition": "some direction has a positive product with every token; B-thm2 needs it",
    "head that does nothing": "one whose weight rests to 90 % on one token, on the token itself or in a learned "
    "sink, or that writes less than a tenth of a fair share of its layer's output",
    "hypotheses": "what a theorem asks for; they are checked on the given weights, and without them no "
    "number is quoted",
    "latent": "a vector between a token and its heads, from which keys and values of all heads are read (MLA), or "
    "the queries; of keys and values it is all that is cached, beside the rotary part of the key",
    "learned sink": "a learned logit beside those of the keys (gpt-oss): the weight that goes to it is what a row of "
    "attention lacks to one",
    "logit": "a score as it goes into the softmax: scaled, soft-capped, with position biases",
    "manifest": "the last file of a stored run; its presence means that the run is complete",
    "massive token": "a token far longer than the others, which dominates raw measures; tables and `--json` list it "
    "under `sinks`. It is told by its length, an attention sink by the weight that it gets",
    "mu": "distance of the tokens from all being equal: the Frobenius norm of the tokens minus their mean token",
    "multiplier": "by how much a small disturbance of an equilibrium grows in one layer; below one it dies away",
    "needed rank": "the fewest directions of a head's scores with which its attention on the tokens of a text stays "
    "within a stated divergence of what it was",
    "numerical rank": "how many singular values exceed the rounding errors of the largest",
    "principal angles": "the angles between two subspaces, smallest first; their mean squared cosine is the overlap "
    "of the spaces, 1 where one lies in the other",
    "probing": "reading a head's linear maps off its answers to unit vectors, whatever its weights are called",
    "protocol": "how a cell is trained: `published` repeats the same 100 batches, `fresh` draws new ones every step",
    "query/key form": "the bilinear form K Q^T with which a head scores pairs of tokens",
    "radius": "the number of steps in which the best placed root reaches every token",
    "relative mu": "mu over the size of all tokens together: the share that distinguishes them, between 0 and 1",
    "RankMe": "the effective rank of all vectors of a dataset together, as they are (Garrido et al. 2023); an audit "
    "takes it of all tokens of all its texts, at the end of the model",
    "replay": "running one recorded attention module again in float64, verified against the recorded pass first",
    "root": "a token from which every token is reached along the mask's graph; with a root pure attention collapses",
    "smallest singular value": "size of the weakest direction; zero when the tokens do not have full rank",
    "stable rank": "squared size of all tokens over the squared size of their strongest direction",
    "stack": "models trained together as one program, with a leading model axis",
    "store": "the folder of complete runs, each named by the hash of its configuration",
    "structural rank": "the largest rank that a head's query/key form can have, whatever its weights: min(head size, "
    "query latent, key latent + rotary part)",
    "tail rate": "the factor per layer by which mu shrinks once scores have become flat: the second "
    "eigenvalue of uniform attention",
    "token rank": "how many directions the token representations of a text span, however it is counted",
    "unit view": "every token divided by its length: directions alone, so that long tokens do not hide the others",
    "value rank": "the rank of a head's value and output maps",
}


def used(text: str) -> dict[str, str]:
    """The entries whose words occur in a text, plural or not, in alphabetical order."""
    lower = text.lower()
    return {
        word: meaning for word, meaning in sorted(GLOSSARY.items()) if re.search(rf"\b{re.escape(word)}s?\b", lower)
    }


def glossary_page() -> str:
    """The page of the documentation: a heading for each word, so that other pages can link to it."""
    opening = (
        "# Glossary\n\nThe words that commands, reports and these pages use. Columns of a report's tables are\n"
        "explained behind their `?`, measures in the guide to [`audit`](guide/audit.md).\n"
    )
    entries = (f"\n## {word}\n\n{textwrap.fill(meaning, 118)}\n" for word, meaning in sorted(GLOSSARY.items()))
    return opening + "".join(entries)


if __name__ == "__main__":
    print(glossary_page(), end="")
