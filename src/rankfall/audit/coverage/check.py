"""Run a small random model of one architecture with and without recording, and compare bit by bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, final

import torch
from torch import Tensor

from rankfall.audit.coverage.inputs import candidate_inputs
from rankfall.audit.coverage.small import small_models
from rankfall.audit.interface import recorded
from rankfall.errors import RequestError

Outcome = Literal[
    "exact",
    "exact, weights only",
    "exact, partial",
    "exact, unseen",
    "differs",
    "no attention",
    "not built",
    "not run",
]


@final
@dataclass(frozen=True)
class Checked:
    """`exact`: outputs bit-equal to eager attention and every attention module that ran was seen in full."""

    model_type: str
    outcome: Outcome
    expected: int = 0
    calls: int = 0
    note: str = ""


def check_architecture(model_type: str) -> Checked:
    """Build, run, record, compare. The reference is the same model with eager attention."""
    trouble = ""
    try:
        for model in small_models(model_type):
            for inputs in candidate_inputs(model):
                try:
                    plain = _run(_eager(model), inputs)
                except Exception as error:  # an input this architecture does not take; the next may do
                    trouble = trouble or f"{type(error).__name__}: {str(error)[:120]}"
                    continue
                return _compare(model_type, model, inputs, plain)
    except RequestError as error:
        return Checked(model_type, "not built", note=_one_line(str(error.got)))
    except Exception as error:  # a default configuration that cannot even be made
        return Checked(model_type, "not built", note=_one_line(f"{type(error).__name__}: {error}"))
    return Checked(model_type, "not run", note=_one_line(trouble))


def _compare(model_type: str, model: Any, inputs: dict[str, Tensor], plain: list[Tensor]) -> Checked:
    try:
        with recorded(model, lambda call: None) as recording:
            seen = _run(model, inputs)
    except Exception as error:  # recording broke a model that runs without it: that must show in the table
        return Checked(model_type, "differs", note=_one_line(f"{type(error).__name__}: {error}"))
    coverage = recording.coverage()
    calls = sum(coverage.calls.values())
    equal = len(seen) == len(plain) and all(map(_same, seen, plain))
    outcome: Outcome
    if not equal:
        outcome = "differs"
    elif coverage.expected == 0:
        outcome = "no attention"
    elif coverage.complete:
        outcome = "exact"
    elif coverage.state == "weights only":
        outcome = "exact, weights only"
    else:
        outcome = "exact, partial" if calls else "exact, unseen"
    note = "" if outcome == "exact" and not coverage.not_run else coverage.reason
    return Checked(model_type, outcome, coverage.expected, calls, _one_line(note))


def _eager(model: Any) -> Any:
    if model._can_set_attn_implementation():
        model.set_attn_implementation("eager")
    return model


def _run(model: Any, inputs: dict[str, Tensor]) -> list[Tensor]:
    torch.manual_seed(0)
    with torch.no_grad():
        return list(_tensors(model(**inputs)))


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output.clone()
    elif isinstance(output, dict):
        for value in output.values():
            yield from _tensors(value)
    elif isinstance(output, (list, tuple)):
        for value in output:
            yield from _tensors(value)


def _same(left: Tensor, right: Tensor) -> bool:
    return left.shape == right.shape and bool(((left == right) | ((left != left) & (right != right))).all())


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]
