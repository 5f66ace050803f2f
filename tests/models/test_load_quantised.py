"""Quantised weights that the library turns back into plain numbers; others are refused, and say what would work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.models.small import small_config

from rankfall.errors import RequestError
from rankfall.models.audit import audit
from rankfall.models.load.open import open_model

FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_fp8_blocks_become_plain_numbers(tmp_path: Path) -> None:
    from transformers import LlamaForCausalLM

    torch.manual_seed(0)
    LlamaForCausalLM(small_config("llama", num_hidden_layers=2)).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    expected = dict(tensors)
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        blocks = tensors[name].unflatten(0, (-1, 16)).unflatten(2, (-1, 16))
        scale = blocks.abs().amax(dim=(1, 3)) / 448
        spread = scale.repeat_interleave(16, 0).repeat_interleave(16, 1)
        small = (tensors[name] / spread).to(torch.float8_e4m3fn)
        tensors[name], tensors[f"{name}_scale_inv"] = small, scale
        expected[name] = small.float() * spread
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    edit(
        tmp_path / "config.json",
        quantization_config={
            "quant_method": "fp8", "weight_block_size": [16, 16], "modules_to_not_convert": ["lm_head"],
            "activation_scheme": "dynamic",
        },
    )  # fmt: skip
    loaded = open_model(tmp_path)
    state = loaded.network.state_dict()
    for name, tensor in expected.items():
        if name != "lm_head.weight":
            torch.testing.assert_close(state[name.removeprefix("model.")], tensor, rtol=1e-6, atol=1e-7)
    assert {parameter.dtype for parameter in loaded.network.parameters()} == {torch.float32}
    assert loaded.notes == ("weights in fp8 were turned back into float32",)
    found = audit(loaded, inputs=torch.arange(4, 24)[None], heads=False, ablation=False)
    assert {one.name for one in found.controls} >= {"random_weights"}
    assert all(one.reason is None for one in found.controls)


def test_mxfp4_blocks_become_plain_numbers(tmp_path: Path) -> None:
    from transformers import GptOssForCausalLM

    torch.manual_seed(0)
    config = small_config(
        "gpt_oss", num_hidden_layers=1, num_key_value_heads=2, head_dim=8, hidden_size=32, intermediate_size=32,
        num_local_experts=2, num_experts_per_tok=1, layer_types=["full_attention"],
    )  # fmt: skip
    GptOssForCausalLM(config).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    generator = torch.Generator().manual_seed(1)
    expected = {}
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inner, outer = tensors.pop(name).shape
        blocks = torch.randint(256, (experts, outer, inner // 32, 16), generator=generator).to(torch.uint8)
        scales = torch.randint(120, 130, (experts, outer, inner // 32), generator=generator).to(torch.uint8)
        numbers = torch.stack([FP4[(blocks & 15).long()], FP4[(blocks >> 4).long()]], dim=-1).flatten(-2)
        numbers = numbers * torch.exp2(scales.float() - 127)[..., None]
        expected[name.removeprefix("model.")] = numbers.flatten(-2).mT
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    edit(tmp_path / "config.json", quantization_config={"quant_method": "mxfp4"})
    loaded = open_model(tmp_path)
    state = loaded.network.state_dict()
    assert len(expected) == 2
    for name, numbers in expected.items():
        assert torch.equal(state[name], numbers)
    assert loaded.notes == ("weights in mxfp4 were turned back into float32",)


@pytest.mark.parametrize("given", [{"quant_method": "gptq", "bits": 4}, {"quant_method": "evil"}, {}, "fp8", ["fp8"]])
def test_others_are_refused_and_say_what_would_work(tmp_path: Path, given: Any) -> None:
    from transformers import BertModel

    BertModel(small_config("bert")).save_pretrained(tmp_path)
    edit(tmp_path / "config.json", quantization_config=given)
    with pytest.raises(
        RequestError, match=r"quantised as fp8 or mxfp4; got .*; use the unquantised model, a GGUF file"
    ):
        open_model(tmp_path)
