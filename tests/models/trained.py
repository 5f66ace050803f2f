"""Real checkpoints: a small GPT-2 that learns a few sentences by heart, saved on the way."""

from __future__ import annotations

from pathlib import Path

import torch
from tests.models.small import save_small, small_config, some_text

STEPS = (0, 2, 10, 30)


def save_checkpoints(base: Path, steps: tuple[int, ...] = STEPS, layers: int = 3) -> list[Path]:
    """Folders `checkpoint-<step>` in `base`, each with the tokenizer, in the order of training."""
    from transformers import AutoTokenizer, GPT2LMHeadModel

    tokenizer = AutoTokenizer.from_pretrained(save_small(base / "tokenizer", "gpt2"))
    torch.manual_seed(0)
    model = GPT2LMHeadModel(small_config("gpt2", n_layer=layers))
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    ids = torch.tensor([tokenizer(some_text(30, seed))["input_ids"] for seed in range(4)])
    folders = []
    for step in range(max(steps) + 1):
        if step in steps:
            folders.append(base / f"checkpoint-{step}")
            model.save_pretrained(folders[-1])
            tokenizer.save_pretrained(folders[-1])
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return folders
