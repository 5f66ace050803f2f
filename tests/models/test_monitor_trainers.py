"""The monitor inside the trainers themselves, transformers' and Lightning's, on a tiny model for a few steps."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from rankfall.models.monitor.alarms import Alarms, RankWarning
from rankfall.models.monitor.callbacks import lightning_callback, trainer_callback

pytest.importorskip("accelerate")
lightning = pytest.importorskip("pytorch_lightning")
# With marimo loaded, as other tests do, transformers takes itself to be in a notebook and looks for IPython.
_marimo = sys.modules.pop("marimo", None)
Trainer = transformers.Trainer
if _marimo is not None:
    sys.modules["marimo"] = _marimo

QUIET = Alarms(relative_mu=0.0, energy_rank=0.0, norm_ratio=1e9)
WATCHED = "rankfall/model.layers.2/energy_rank"


class Sequences(torch.utils.data.Dataset):
    """Random token ids that are their own labels."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        ids = torch.randint(20, (12,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


def language_model() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=16, vocab_size=20
    )
    return transformers.LlamaForCausalLM(config)


def trainer(model: nn.Module, folder: Path, callbacks: list[Any], **settings: Any) -> Any:
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        save_strategy="no",
        report_to=[],
        seed=0,
        **{"logging_strategy": "no", **settings},
    )
    return Trainer(model=model, args=arguments, train_dataset=Sequences(), callbacks=callbacks)


def watched(history: list[dict[str, Any]]) -> list[int]:
    return [row["step"] for row in history if WATCHED in row]


def hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def test_the_trainer_logs_every_second_step_of_three_batches_each(tmp_path: Path) -> None:
    model = language_model()
    run = trainer(
        model,
        tmp_path,
        [trainer_callback(every=2, alarms=QUIET)],
        max_steps=5,
        gradient_accumulation_steps=3,
    )
    run.train()
    assert run.state.global_step == 5
    assert watched(run.state.log_history) == [1, 3, 5]
    assert hooks(model) == 0


def test_scalars_join_the_logs_that_the_trainer_writes_anyway(tmp_path: Path) -> None:
    run = trainer(
        language_model(),
        tmp_path,
        [trainer_callback(every=2, alarms=QUIET)],
        max_steps=4,
        logging_strategy="steps",
        logging_steps=1,
    )
    run.train()
    assert watched(run.state.log_history) == [1, 3]
    assert [row["step"] for row in run.state.log_history if "loss" in row] == [1, 2, 3, 4]


def test_an_attached_callback_logs_through_the_trainer(tmp_path: Path) -> None:
    run = trainer(language_model(), tmp_path, [], max_steps=4)
    trainer_callback(every=2, alarms=QUIET).attach(run)
    run.train()
    assert watched(run.state.log_history) == [1, 3]


def test_an_attached_callback_watches_the_model_that_the_trainer_compiled(tmp_path: Path) -> None:
    compiling = {"torch_compile": True, "torch_compile_backend": "eager"}
    run = trainer(language_model(), tmp_path, [], max_steps=3, **compiling)
    further: list[Any] = []
    trainer_callback(every=2, alarms=QUIET, log=further).attach(run)
    run.train()
    assert watched(run.state.log_history) == [1, 3]
    assert [row["step"] for row in further] == [0, 2]
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore::rankfall.models.monitor.alarms.RankWarning")
def test_a_failing_log_ends_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trainer(language_model(), tmp_path, [], max_steps=3)
    trainer_callback(every=1, alarms=QUIET).attach(run)
    plain = run.log

    def log(scalars: dict[str, float], *given: Any, **named: Any) -> None:
        if WATCHED in scalars:
            raise OSError("disk full")
        plain(scalars, *given, **named)

    monkeypatch.setattr(run, "log", log)
    run.train()
    assert run.state.global_step == 3


def test_the_trainer_learns_the_same_with_the_monitor_as_without(tmp_path: Path) -> None:
    plain, monitored = language_model(), language_model()
    trainer(plain, tmp_path / "plain", [], max_steps=3).train()
    trainer(monitored, tmp_path / "monitored", [trainer_callback(every=1, alarms=QUIET)], max_steps=3).train()
    for one, other in zip(plain.parameters(), monitored.parameters(), strict=True):
        assert torch.equal(one, other)


def in_lightning(test: Any) -> Any:
    """Lightning advises more workers for its loader, and uses a part of PyTorch that will go; neither is ours."""
    for message in (".*does not have many workers.*", ".*LeafSpec.*is deprecated.*"):
        test = pytest.mark.filterwarnings(f"ignore:{message}")(test)
    return test


class Lit(lightning.LightningModule):
    def __init__(self, fail_at: int | None = None) -> None:
        super().__init__()
        self.network = language_model()
        self.fail_at = fail_at

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        if index == self.fail_at:
            raise ZeroDivisionError
        return self.network(**batch).loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Recorder(lightning.loggers.logger.DummyLogger):
    """Lightning's own logger that does nothing, but for remembering."""

    def __init__(self) -> None:
        super().__init__()
        self.got: list[tuple[int, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        if any(name.startswith("rankfall/") for name in metrics):
            assert step is not None
            self.got.append((step, dict(metrics)))


def fit(module: Lit, folder: Path, loggers: list[Recorder], **settings: Any) -> Any:
    run = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        logger=loggers,
        callbacks=[lightning_callback(model="network", every=2, alarms=QUIET)],
        default_root_dir=folder,
        enable_checkpointing=False,
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        **settings,
    )
    run.fit(module, torch.utils.data.DataLoader(Sequences(), batch_size=2))
    return run


@in_lightning
def test_lightning_logs_to_all_of_its_loggers(tmp_path: Path) -> None:
    module, loggers = Lit(), [Recorder(), Recorder()]
    fit(module, tmp_path, loggers, max_steps=4)
    assert [step for step, _ in loggers[0].got] == [1, 3]
    assert loggers[0].got == loggers[1].got
    assert WATCHED in loggers[0].got[0][1]
    assert hooks(module.network) == 0


class Broken(Recorder):
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        if any(name.startswith("rankfall/") for name in metrics):
            raise OSError("disk full")


@in_lightning
def test_a_failing_logger_of_lightning_ends_no_training(tmp_path: Path) -> None:
    module, sound = Lit(), Recorder()
    with pytest.warns(RankWarning, match="gap at Broken, step 0: logging failed, OSError: disk full"):
        run = fit(module, tmp_path, [Broken(), sound], max_steps=3)
    assert run.global_step == 3
    assert [step for step, _ in sound.got] == [1, 3]


@in_lightning
def test_lightning_counts_steps_not_batches(tmp_path: Path) -> None:
    module, loggers = Lit(), [Recorder()]
    run = fit(module, tmp_path, loggers, max_steps=4, accumulate_grad_batches=3)
    assert run.global_step == 4
    assert sorted({step for step, _ in loggers[0].got}) == [0, 2]


@in_lightning
def test_hooks_go_when_lightnings_training_fails(tmp_path: Path) -> None:
    module = Lit(fail_at=3)
    with pytest.raises(ZeroDivisionError):
        fit(module, tmp_path, [Recorder()], max_steps=6)
    assert hooks(module.network) == 0
