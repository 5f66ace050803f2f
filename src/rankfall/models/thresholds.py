"""Every number that separates one answer from another in an audit or a monitor. Conventions, not theorems."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True)
class Thresholds:
    """One set for tokens, variants of the block, and monitors; verdicts state them.

    aligned    the first direction holds more than `aligned_share` of tokens scaled to length one
    collapsed  such tokens differ from their mean by less than `collapsed_relative_mu` of their length, or have an
               energy rank below `collapsed_energy_rank`
    lost       the centred effective rank is below `lost_share` of what the embeddings had
    reduced    it is not lost, but below `reduced_share` of that of every draw of random weights: two draws of random
               weights differ by a few per cent; where none were run it is called "not lost", never "kept"
    dominated  massive tokens hold more than `dominated_share` of the energy
    massive    a token longer than `massive_norm_ratio` times the median one, or with more than `massive_energy_share`
               of the energy and more than FAIR_SHARES times a fair share of it
    resting    a head puts more than `attention_sink_mass` of its weight on the first token, or leaves it to a
               learned sink, which are its attention sinks (Gu et al. 2024 take 0.3 for the first token)
    idle       a head does nothing: at least `idle_mass` of its weight rests on the first token or a learned sink, on
               the token itself, or on one other token; or what it writes is less than `idle_output_share` of a fair
               share, 1/H, of what the H heads of its layer write
    narrow     the entropy of a head is below `collapsed_entropy` of the logarithm of the keys that it may see
    judged     there are at least `fewest_passages` passages of at least `fewest_tokens` tokens
    decided    the interval over passages stays clear of the threshold by the factor `clear_factor`, or, where the
               threshold is a control's number on the same passages, so that most of what differs between texts
               cancels, by `paired_clear_factor`; otherwise the answer depends on the text, about which passages of
               one text cannot tell
    """

    aligned_share: float = 0.5
    collapsed_relative_mu: float = 0.1
    collapsed_energy_rank: float = 2.0
    lost_share: float = 0.5
    reduced_share: float = 0.9
    dominated_share: float = 0.5
    massive_norm_ratio: float = 5.0
    massive_energy_share: float = 0.05
    attention_sink_mass: float = 0.3
    idle_mass: float = 0.9
    idle_output_share: float = 0.1
    collapsed_entropy: float = 0.1
    fewest_tokens: int = 16
    fewest_passages: int = 2
    clear_factor: float = 1.1
    paired_clear_factor: float = 1.02


THRESHOLDS = Thresholds()

# A fair share of the energy of n tokens is 1/n.
FAIR_SHARES = 8.0
# Among fewer tokens than this none is called massive.
FEWEST_TOKENS = 8
# Bounds that differ by less than this, relative to the larger, separate nothing.
SEPARATED = 0.01
