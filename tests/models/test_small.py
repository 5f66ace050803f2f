"""Small models keep what makes their architecture: a layer of every kind, windows that leave keys out."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rankfall.models.architectures.small import TOKENS, candidate_inputs, small_models
from rankfall.models.recording.events import Call
from rankfall.models.recording.interface import attention_modules
from rankfall.models.recording.recorder import recorded


def first(model_type: str) -> Any:
    return next(small_models(model_type))


@pytest.mark.parametrize("model_type", ["jamba", "bamba", "qwen3_next", "zamba2", "recurrent_gemma"])
def test_hybrids_hold_attention_and_something_else(model_type: str) -> None:
    model = first(model_type)
    blocks = next(module for module in model.modules() if isinstance(module, torch.nn.ModuleList))
    attending = [bool(attention_modules(block)) for block in blocks]
    assert any(attending)
    assert not all(attending)


@pytest.mark.parametrize("model_type", ["gemma3_text", "deepseek_v32", "glm_moe_dsa", "llama4_text", "mistral"])
def test_some_layer_sees_fewer_keys_than_there_are_tokens(model_type: str) -> None:
    for model in small_models(model_type):
        inputs = next(iter(candidate_inputs(model)))
        most: list[int] = []

        def see(call: Call, most: list[int] = most) -> None:
            assert call.weights is not None
            most.append(int((call.weights[0, 0] > 0).sum(dim=-1).max()))

        try:
            with torch.no_grad(), recorded(model, see):
                model(**inputs)
        except RuntimeError:  # sizes that this architecture does not run with; the next recipe's do
            continue
        assert inputs["input_ids"].shape[1] == TOKENS
        assert min(most) < TOKENS
        return
    raise AssertionError("no small model ran")
