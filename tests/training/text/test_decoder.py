"""Language models against a plain decoder trained by PyTorch's own AdamW, alone, stacked, resumed, as a module."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.text.plain import PlainDecoder, train_plainly
from torch.nn import functional

from rankfall.training.compiled import without_mixed_reductions
from rankfall.training.text.cell import TextCell
from rankfall.training.text.corpus import prepare_corpus
from rankfall.training.text.decoder import of_one_width
from rankfall.training.text.module import text_model
from rankfall.training.text.optimizer import muon_, orthogonal
from rankfall.training.text.stack import TextStack, text_stack_key

TEXT = "\n\n".join(
    f"Line {i}: the {'quick brown'[i % 5 :]} fox counts {i * i} hens and {i % 7} geese." for i in range(900)
)
SMALL: dict[str, Any] = {
    "width": 12, "layers": 2, "heads": 3, "rank": 4, "value_rank": 5, "key_heads": 3, "feed_forward": 16,
    "context": 10, "batch": 3, "steps": 100, "dtype": "float64",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("text")
    (found / "text.txt").write_text(TEXT)
    return found


@pytest.fixture(scope="module")
def corpus(folder: Path) -> str:
    return prepare_corpus(folder / "text.txt", "bytes", folder).about.digest


VARIANTS: list[dict[str, Any]] = [
    {},
    {"activation": "relu2", "positions": "learned", "tied": False},
    {"mask": "causal-window:3", "heads": 4, "key_heads": 2, "rank": 6, "value_rank": 2},
]


# PyTorch's clipping divides by the length plus 1e-6, ours by the length.
@pytest.mark.parametrize(("clip", "close"), [(1e9, 1e-9), (0.5, 1e-6)], ids=["free", "clipped"])
@pytest.mark.parametrize("changes", VARIANTS, ids=["rotary-swiglu", "learned-relu2-untied", "window-grouped"])
def test_fifty_steps_are_those_of_a_plain_decoder(
    changes: dict[str, Any], clip: float, close: float, folder: Path, corpus: str
) -> None:
    cell = TextCell(**SMALL | changes | {"corpus": corpus, "clip": clip})
    stack = TextStack([cell], folder)
    start = stack.weights(0)
    plain = PlainDecoder(cell, lambda name: start[name])
    batches = [stack.batches.at(torch.tensor(step))[0] for step in range(50)]
    expected = train_plainly(plain, batches, 50)
    found = []
    for _ in range(50):
        before = float(stack._loss_sum[0])
        stack.run_steps(1)
        found.append(float(stack._loss_sum[0]) - before)
    assert expected[-1] < expected[0] - 0.3
    assert max(abs(a - b) for a, b in zip(expected, found, strict=True)) < close
    for name, value in stack.weights(0).items():
        assert torch.allclose(value, plain.w(name), atol=10 * close), name


def test_a_stack_trains_each_model_as_it_trains_alone(folder: Path, corpus: str) -> None:
    cells = [
        TextCell(**SMALL, corpus=corpus, seed=seed, learning_rate=rate) for seed, rate in ((0, 0.003), (5, 0.01))
    ]
    together = TextStack(cells, folder)
    together.advance()
    for index, cell in enumerate(cells):
        alone = TextStack([cell], folder)
        alone.advance()
        for name, value in alone.weights(0).items():
            assert torch.allclose(value, together.weights(index)[name], atol=1e-10), name


def test_cells_of_other_shapes_do_not_stack(corpus: str) -> None:
    cell = TextCell(**SMALL, corpus=corpus)
    together = [dataclasses.replace(cell, seed=1), dataclasses.replace(cell, learning_rate=1e-4)]
    apart = [dataclasses.replace(cell, **change) for change in ({"rank": 2}, {"batch": 4}, {"clip": 2.0})]
    assert {text_stack_key(one) for one in together} == {text_stack_key(cell)}
    assert len({text_stack_key(one) for one in [cell, *apart]}) == 4


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_going_on_is_bit_equal_to_not_stopping(optimizer: str, folder: Path, corpus: str) -> None:
    cell = TextCell(**SMALL | {"steps": 200, "dtype": "float32"}, corpus=corpus, optimizer=optimizer)
    whole = TextStack([cell], folder)
    rows = whole.advance() + whole.advance()
    first = TextStack([cell], folder)
    before = first.advance()
    second = TextStack([cell], folder)
    second.restore(first.state())
    assert before + second.advance() == rows
    assert second.summaries() == whole.summaries()
    assert all(torch.equal(value, whole.weights(0)[name]) for name, value in second.weights(0).items())


@pytest.mark.parametrize("changes", [*VARIANTS, {"norm": "layer-scaled"}])
def test_the_module_computes_what_was_trained(changes: dict[str, Any], folder: Path, corpus: str) -> None:
    cell = TextCell(**SMALL | changes | {"corpus": corpus})
    stack = TextStack([cell], folder)
    stack.advance()
    model = text_model(cell, stack.weights(0))
    tokens = stack.batches.at(torch.tensor(7))
    with torch.no_grad():
        expected = stack.decoder.logits(stack._weights, tokens[..., :-1])[0]
        assert torch.allclose(model(tokens[0, :, :-1]), expected, atol=1e-12)
    assert sum(parameter.numel() for parameter in model.parameters()) == stack.layout.parameters


def test_norms_that_change_with_depth_do_so(folder: Path, corpus: str) -> None:
    """Both branches of layer l have the norm of layer l; the final one is that of the first."""
    cell = TextCell(**SMALL, corpus=corpus, norm="layer-scaled")
    model = text_model(cell, TextStack([cell], folder).weights(0))
    depths = [(block.attention_norm.norm.depth, block.feed_forward_norm.norm.depth) for block in model.blocks]
    assert depths == [(1, 1), (2, 2)]
    assert model.final_norm.norm.depth == 1


def test_held_out_loss_by_hand(folder: Path, corpus: str) -> None:
    cell = TextCell(**SMALL, corpus=corpus)
    stack = TextStack([cell], folder)
    found = stack.held_out(10**9)
    text, length = stack.batches.held_out, cell.context
    model = text_model(cell, stack.weights(0))
    nats, count = 0.0, 0
    for start in range(0, len(text) - 1 - (len(text) - 1) % length, length):
        window = text[start : start + length + 1].long()
        with torch.no_grad():
            logs = torch.log_softmax(model(window[None, :-1])[0], dim=-1)
        nats -= float(logs[torch.arange(length), window[1:]].sum())
        count += int((window[1:] < 256).sum())
    assert found["nats_per_byte"][0] == pytest.approx(nats / count, rel=1e-12)


def test_muon_is_pytorchs() -> None:
    muon = getattr(torch.optim, "Muon", None)
    if muon is None:
        pytest.skip("this PyTorch has no Muon")
    torch.manual_seed(0)
    from rankfall.training.parameters import constant, laid_out

    layout = laid_out([("0.query", (6, 9), constant(0.0)), ("0.fall", (8, 4), constant(0.0))])
    rows = torch.randn(1, layout.size)
    memory = torch.zeros_like(rows)
    weights = {name: torch.nn.Parameter(view[0].clone()) for name, view in layout.views(rows).items()}
    optimizer = muon(weights.values(), lr=0.02, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    for _ in range(5):
        grads = torch.randn(1, layout.size)
        for name, view in layout.views(grads).items():
            weights[name].grad = view[0].clone()
        optimizer.step()
        rows += muon_(rows, grads, memory, torch.tensor([[0.02]]), 0.1, layout.slots)
    for name, view in layout.views(rows).items():
        # PyTorch's rounds to bfloat16 within; ours does so on GPUs only
        assert torch.allclose(view[0], weights[name].detach(), atol=2e-3), name


def test_orthogonal_brings_singular_values_near_one() -> None:
    values = torch.linalg.svdvals(orthogonal(torch.randn(3, 20, 7, dtype=torch.float64)))
    assert values.min() > 0.6
    assert values.max() < 1.3


def test_a_model_that_diverges_keeps_its_weights_and_leaves_the_other_alone(folder: Path, corpus: str) -> None:
    cells = [TextCell(**SMALL, corpus=corpus, learning_rate=rate) for rate in (1e200, 0.003)]
    both = TextStack(cells, folder)
    rows = both.advance()
    alone = TextStack(cells[1:], folder)
    alone.advance()
    assert [row["diverged"] for row in rows] == [True, False]
    assert all(torch.allclose(value, both.weights(1)[name], atol=1e-10) for name, value in alone.weights(0).items())


ONE_GRAPH = """
import sys, torch
from pathlib import Path
from rankfall.training.compiled import without_mixed_reductions
from rankfall.training.text.cell import TextCell
from rankfall.training.text.stack import TextStack

cells = [TextCell(corpus=sys.argv[2], width=12, heads=3, rank=4, value_rank=5, key_heads=3, feed_forward=16, layers=2,
                  context=10, batch=3, steps=100, dtype="float64", seed=seed) for seed in range(2)]
stack = TextStack(cells, Path(sys.argv[1]))
tokens, weights = stack.batches.at(torch.tensor(0)), list(stack._weights.values())
compiled = torch.compile(stack.loss, dynamic=False, fullgraph=True, backend="aot_eager")
found = torch.autograd.grad(compiled(stack._weights, tokens).sum(), weights)
wanted = torch.autograd.grad(stack.loss(stack._weights, tokens).sum(), weights)
print(max(float((one - other).abs().max()) for one, other in zip(found, wanted)))
"""


def test_the_loss_compiles_as_one_graph_with_the_same_gradients(folder: Path, corpus: str) -> None:
    """A break would cut a step into pieces. In a process of its own: checks of shapes in tests would break it."""
    command = [sys.executable, "-c", ONE_GRAPH, str(folder), corpus]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(done.stdout) < 1e-12


@pytest.mark.parametrize(("rank", "value"), [(4, 4), (4, 20), (16, 5)])
def test_zeros_behind_queries_keys_and_values_change_nothing(rank: int, value: int) -> None:
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 7, size, generator=draw, dtype=torch.float64) for size in (rank, rank, value))
    wide = of_one_width(q, k, v)
    assert {part.shape[-1] for part in wide} == {-(-max(rank, value) // 8) * 8}
    attend = functional.scaled_dot_product_attention
    found = attend(*wide, is_causal=True, scale=0.5)
    assert torch.allclose(found[..., :value], attend(q, k, v, is_causal=True, scale=0.5), atol=1e-12)
    assert not found[..., value:].any()


def test_the_compiler_keeps_the_sums_of_a_norm_apart(
    folder: Path, corpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[dict[str, Any]] = []

    def compile(function: Any, **how: Any) -> Any:
        told.append(how)
        return function

    monkeypatch.setattr(torch, "compile", compile)
    TextStack([TextCell(**SMALL | {"corpus": corpus})], folder, compile=True)
    assert [how.get("options") for how in told] == [{"triton.mix_order_reduction": False}, None]
    assert not any(how["dynamic"] for how in told)
    monkeypatch.delattr(torch._inductor.config.triton, "mix_order_reduction", raising=True)
    assert without_mixed_reductions() == {}
