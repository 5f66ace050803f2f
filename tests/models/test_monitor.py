"""The monitor measures what it says, changes nothing, warns once, and speaks to every kind of logger."""

from __future__ import annotations

import gc
import logging
import sys
import warnings
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from rankfall.measures.base import measure
from rankfall.models.monitor.alarms import Alarms, RankWarning
from rankfall.models.monitor.callbacks import lightning_callback
from rankfall.models.monitor.logs import as_log
from rankfall.models.monitor.monitor import RankMonitor
from rankfall.models.recording.blocks import choose_blocks

QUIET = Alarms(relative_mu=0.0, energy_rank=0.0, norm_ratio=1e9)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.scale = 1.0

    def forward(self, tokens: Tensor) -> tuple[Tensor, None]:
        return self.scale * (tokens + self.inner(tokens)), None


class Network(nn.Module):
    def __init__(self, depth: int = 5, width: int = 16) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.seen: Tensor | None = None

    def forward(self, tokens: Tensor) -> Tensor:
        for block in self.blocks:
            tokens, _ = block(tokens)
        self.seen = tokens
        return tokens


def batch(seed: int, tokens: int = 40) -> Tensor:
    return torch.randn(2, tokens, 16, generator=torch.Generator().manual_seed(seed))


def train(model: nn.Module, steps: int) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    losses = []
    for step in range(steps):
        loss = model(batch(step)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_scalars_are_the_measures_of_unit_tokens() -> None:
    model, logged = Network(), []
    with RankMonitor(model, logged, alarms=QUIET, tokens=40):
        model(batch(0))
    assert model.seen is not None
    tokens = model.seen[0].detach().double()
    lengths = tokens.norm(dim=-1)
    expected = measure(tokens / lengths[:, None])
    for name in ("relative_mu", "effective_rank", "energy_rank", "mean_abs_cosine"):
        assert logged[0][f"rankfall/blocks.4/{name}"] == pytest.approx(float(expected[name]), rel=1e-5)
    ratio = float(lengths.max() / lengths.median())
    assert logged[0]["rankfall/blocks.4/norm_ratio"] == pytest.approx(ratio, rel=1e-5)
    assert logged[0]["rankfall/blocks.4/longest_token"] == int(lengths.argmax())


def padded_models() -> list[tuple[nn.Module, Tensor, str, Tensor]]:
    """A model, its input of one long and one short sequence, the name of its padding mask, which tokens are real."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    llama = transformers.LlamaModel(transformers.LlamaConfig(vocab_size=20, **sizes))
    layer = nn.TransformerEncoderLayer(16, 2, 16, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    real = torch.tensor([[1] * 3 + [0] * 37, [1] * 30 + [0] * 10])
    ids = torch.randint(1, 20, (2, 40)) * real
    return [
        (llama, ids, "attention_mask", real),
        (encoder, torch.randn(2, 40, 16), "src_key_padding_mask", real == 0),
    ]


@pytest.mark.parametrize("by_name", [True, False])
@pytest.mark.parametrize("number", [0, 1])
def test_padding_is_left_out(number: int, by_name: bool) -> None:
    model, given, name, mask = padded_models()[number]
    if not by_name:
        # Positions of the forward pass: Llama's mask is its second argument, the encoder's its third.
        arguments = (given, mask) if number == 0 else (given, None, mask)
        padded = run_watched(model, *arguments)
    else:
        padded = run_watched(model, given, **{name: mask})
    # The longer sequence alone, which has 30 real tokens.
    alone = run_watched(model, given[1:, :30])
    assert padded.keys() == alone.keys()
    for scalar, value in alone.items():
        assert padded[scalar] == pytest.approx(value, rel=1e-4, abs=1e-6), scalar


@pytest.mark.parametrize("compiled", [False, True])
def test_torchs_own_layers_with_the_sequence_first(compiled: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 16, dropout=0.0)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    batch_first = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 2, 16, dropout=0.0, batch_first=True), 2, enable_nested_tensor=False
    )
    batch_first.load_state_dict(model.state_dict())
    if compiled:
        for block in model.layers:
            block.compile(backend="eager")
    tokens, padding = batch(0), torch.arange(40)[None] >= torch.tensor([[20], [30]])
    expected = run_watched(batch_first, tokens, src_key_padding_mask=padding)
    found = run_watched(model, tokens.transpose(0, 1), src_key_padding_mask=padding)
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)


def run_watched(model: nn.Module, *given: Any, **named: Any) -> dict[str, float]:
    with RankMonitor(model.train(), [], alarms=QUIET) as monitor:
        model(*given, **named)
    return monitor.latest


def test_every_k_steps_and_only_in_training() -> None:
    model, logged = Network(), []
    with RankMonitor(model, logged, every=3, alarms=QUIET):
        train(model, 7)
        model.eval()
        model(batch(0))
    assert [row["step"] for row in logged] == [0, 3, 6]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    train(model, 1)
    assert len(logged) == 3


def test_a_monitored_run_is_the_same_run() -> None:
    plain = train(Network(), 5)
    model = Network()
    with RankMonitor(model, [], every=1, alarms=QUIET):
        assert train(model, 5) == plain


def test_blocks_are_spread_or_named() -> None:
    model = Network(depth=9)
    assert list(choose_blocks(model, 3)) == ["blocks.0", "blocks.4", "blocks.8"]
    assert list(choose_blocks(model, 1)) == ["blocks.8"]
    assert list(choose_blocks(model, (-1, "blocks.2.inner"))) == ["blocks.8", "blocks.2.inner"]
    with pytest.raises(ValueError, match="the name of a module, or a position among 9 blocks; got missing"):
        choose_blocks(model, ("missing",))
    with pytest.raises(ValueError, match="0 blocks found"):
        choose_blocks(nn.Linear(2, 2), 3)


def test_blocks_of_real_architectures() -> None:
    config = transformers.LlamaConfig(
        hidden_size=16, num_hidden_layers=4, num_attention_heads=2, intermediate_size=16, vocab_size=20
    )
    model, logged = transformers.LlamaForCausalLM(config).train(), []
    with RankMonitor(model, logged, alarms=QUIET):
        model(input_ids=torch.arange(3, 15)[None])
    watched = {name.split("/")[1] for name in logged[0] if "/" in name}
    assert watched == {"model.layers.0", "model.layers.2", "model.layers.3"}


def test_collapse_warns_once() -> None:
    model = Network()
    tokens = torch.ones(1, 20, 16) + 1e-3 * batch(0)[:1, :20]
    with RankMonitor(model, [], every=1, blocks=(-1,)), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model(tokens)
        model(tokens)
    ours = [str(one.message) for one in caught if one.category is RankWarning]
    assert len(ours) == 1
    assert "collapse at blocks.4, step 0" in ours[0]


def test_a_sink_is_named_and_does_not_feign_collapse() -> None:
    model = Network()
    tokens = batch(0)
    tokens[:, 7] *= 300
    with (
        RankMonitor(model, [], every=1, blocks=(0,), tokens=40),
        pytest.warns(RankWarning, match="massive token at blocks.0.*token 7 of the sequence") as caught,
    ):
        model(tokens)
    assert len(caught) == 1


def test_tokens_that_are_not_finite_warn_and_do_not_stop_training() -> None:
    model, logged = Network(), []
    model.blocks[4].scale = float("nan")
    with RankMonitor(model, logged, every=1), pytest.warns(RankWarning, match="nonfinite at blocks.4"):
        model(batch(0))
    assert logged[0]["rankfall/blocks.4/nonfinite"] == 1.0
    assert "rankfall/blocks.0/energy_rank" in logged[0]


class Odd(nn.Module):
    """A block that gives what it is told to give, beside what the next block takes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)
        self.gives: Any = None

    def forward(self, tokens: Any) -> Any:
        return tokens if self.gives is None else self.gives


class OddNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Odd() for _ in range(3))

    def forward(self, tokens: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        for block in self.blocks:
            block(tokens)
        return tokens


ODD: dict[str, tuple[Tensor, Any, Tensor | None]] = {
    "one token": (batch(0, tokens=1), None, None),
    "no tokens": (batch(0, tokens=0), None, None),
    "an empty batch": (batch(0)[:0], None, None),
    "all padding": (batch(0), None, torch.zeros(2, 40)),
    "two axes": (batch(0), batch(0)[0], None),
    "four axes": (batch(0), batch(0)[None], None),
    "whole numbers": (batch(0), batch(0).long(), None),
    "no tensor": (batch(0), {"loss": 1.0}, None),
}


@pytest.mark.parametrize("case", ODD)
def test_what_cannot_be_measured_is_one_warning_and_a_gap(case: str) -> None:
    given, gives, mask = ODD[case]
    model, logged = OddNetwork(), []
    with (
        RankMonitor(model, logged, every=1, alarms=QUIET) as monitor,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        for block in model.blocks:
            block.gives = gives
        for _ in range(2):
            model(given, attention_mask=mask)
        assert logged == []
        assert monitor.latest == {}
        for block in model.blocks:
            block.gives = None
        model(batch(0))
    assert [one.category for one in caught] == [RankWarning]
    assert str(caught[0].message).startswith("gap at blocks.0, step 0: sampling failed, RequestError")
    assert [row["step"] for row in logged] == [2]


def test_where_warnings_are_errors_they_are_printed_and_training_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RankWarning)
        with RankMonitor(model, failing, every=1, blocks=["1"], alarms=QUIET):
            model(torch.randn(2, 8, 16))
    assert "rankfall: gap at" in capsys.readouterr().err


def test_a_monitor_that_was_never_entered_says_so() -> None:
    unused = [RankMonitor(nn.Sequential(nn.Linear(4, 4)), [], blocks=["0"])]
    unused.clear()
    with pytest.warns(RankWarning, match="never entered") as caught:
        gc.collect()
    assert len(caught) == 1


def test_one_odd_block_leaves_the_others_measured() -> None:
    model, logged = OddNetwork(), []
    model.blocks[1].gives = batch(0)[0]
    with RankMonitor(model, logged, every=1, alarms=QUIET), pytest.warns(RankWarning, match="gap at blocks.1"):
        model(batch(0))
    watched = {name.split("/")[1] for name in logged[0] if "/" in name}
    assert watched == {"blocks.0", "blocks.2"}


def failing(*_: Any, **__: Any) -> None:
    raise OSError("disk full")


def test_a_failing_logger_measure_or_step_ends_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = train(Network(), 3)
    model = Network()
    with RankMonitor(model, failing, every=1, alarms=QUIET), pytest.warns(RankWarning, match="disk full") as caught:
        assert train(model, 3) == plain
    assert [str(one.message) for one in caught] == [
        "gap at the logger, step 0: logging failed, OSError: disk full",
    ]
    model = Network()
    with (
        RankMonitor(model, [], every=1, alarms=QUIET, step=failing),
        pytest.warns(RankWarning, match="counting steps failed"),
    ):
        assert train(model, 3) == plain
    monkeypatch.setattr("rankfall.models.monitor.sample.measure", failing)
    model = Network()
    with RankMonitor(model, [], every=1, alarms=QUIET), pytest.warns(RankWarning, match="measuring failed"):
        assert train(model, 3) == plain


class Routed(nn.Module):
    """A block of a plain mixture of experts, with more experts than there are blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(8))

    def forward(self, tokens: Tensor) -> Tensor:
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            chosen = tokens[..., : len(self.experts)].argmax(dim=-1) == number
            out[chosen] = expert(tokens[chosen])
        return tokens + out


def test_blocks_of_a_mixture_are_watched_not_its_experts() -> None:
    model, logged = nn.Sequential(*(Routed() for _ in range(3))), []
    with RankMonitor(model, logged, alarms=QUIET):
        train(model, 2)
    watched = {name.split("/")[1] for name in logged[0] if "/" in name}
    assert watched == {"0", "1", "2"}


class Writer:
    def __init__(self) -> None:
        self.got: list[Any] = []


class SummaryLike(Writer):
    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.got.append((name, value, step))


class MetricsLike(Writer):
    def log_metrics(self, scalars: dict[str, float], step: int) -> None:
        self.got += [(name, value, step) for name, value in scalars.items()]


class RunLike(Writer):
    def log(self, scalars: dict[str, float], step: int) -> None:
        self.got += [(name, value, step) for name, value in scalars.items()]


@pytest.mark.parametrize("kind", [SummaryLike, MetricsLike, RunLike])
def test_loggers(kind: type[Writer]) -> None:
    writer = kind()
    as_log(writer)({"a/b": 1.5}, 7)
    assert writer.got == [("a/b", 1.5, 7)]


def test_log_to_functions_and_to_python_logging(caplog: pytest.LogCaptureFixture) -> None:
    got: list[Any] = []
    as_log(lambda scalars, step: got.append((dict(scalars), step)))({"a": 2.0}, 3)
    assert got == [({"a": 2.0}, 3)]
    with caplog.at_level(logging.INFO, logger="rankfall.monitor"):
        as_log()({"a": 2.0}, 3)
    assert "step 3: a=2" in caplog.text
    with pytest.raises(ValueError, match="required a logger with add_scalar"):
        as_log(3)


def test_lightning_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    monkeypatch.setitem(sys.modules, "pytorch_lightning", None)
    with pytest.raises(ValueError, match="neither installed; install lightning"):
        lightning_callback()
