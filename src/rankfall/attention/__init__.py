"""The mechanism: attention whose query/key rank, value rank and head count are independent; masks; norms."""

from rankfall.attention.attend import attend, attention_weights
from rankfall.attention.generalised import GeneralisedHead, generalised_attention
from rankfall.attention.heads import Heads, bilinear_forms, value_forms
from rankfall.attention.layer import attention
from rankfall.attention.weights import hardmax_weights, scores, softmax_weights

__all__ = [
    "GeneralisedHead",
    "Heads",
    "attend",
    "attention",
    "attention_weights",
    "bilinear_forms",
    "generalised_attention",
    "hardmax_weights",
    "scores",
    "softmax_weights",
    "value_forms",
]
