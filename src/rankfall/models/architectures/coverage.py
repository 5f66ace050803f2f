"""Which architectures of the installed library can be audited, and how far, by running small random ones."""

from __future__ import annotations

import csv
import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import metadata, resources
from pathlib import Path
from typing import Any, Literal, final, get_args

import torch
from torch import Tensor

from rankfall.errors import RequestError, reason_of, require
from rankfall.models.architectures.small import candidate_inputs, small_models
from rankfall.models.audit import audit
from rankfall.models.recording.interface import INTERFACE_NAMES
from rankfall.models.recording.recorder import recorded
from rankfall.models.result import AuditFindings

Reach = Literal["interface", "bypasses", "no attention of its own"]
"""The last covers model types without attention and those made of other types."""

ATTENTION_CLASS = re.compile(r"^class \w*attention\w*\(", re.IGNORECASE | re.MULTILINE)


def installed_architectures() -> dict[str, Reach]:
    """How far each model type can be reached. Reads source files only: nothing is imported, built or run."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES, model_type_to_module_name

    root = Path(transformers.__file__).parent / "models"
    return {name: _reach(root / model_type_to_module_name(name)) for name in sorted(CONFIG_MAPPING_NAMES)}


def known_type(name: str) -> str:
    """The name, if the installed library has such a model type."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    near = difflib.get_close_matches(name.lower(), CONFIG_MAPPING_NAMES, n=3)
    require(
        name in CONFIG_MAPPING_NAMES,
        required="a model type of the installed library",
        got=name if name.strip() else repr(name),
        remedy=f"near it are {', '.join(near)}" if near else "rankfall coverage lists them all",
    )
    return name


def _reach(folder: Path) -> Reach:
    source = "\n".join(path.read_text() for path in sorted(folder.glob("modeling_*.py")))
    if any(name in source for name in INTERFACE_NAMES):
        return "interface"
    return "bypasses" if ATTENTION_CLASS.search(source) else "no attention of its own"


CheckOutcome = Literal[
    "exact",
    "exact, weights only",
    "exact, partial",
    "exact, unseen",
    "differs",
    "no attention",
    "not built",
    "not run",
]
# Of rows of the table: also of architectures that are newer than it.
NOT_MEASURED = "not measured"
OUTCOMES: tuple[str, ...] = (*get_args(CheckOutcome), NOT_MEASURED)
Grade = Literal["exact", "partial", "missing"]
PARTS = ("depth", "masks", "heads", "ablation", "controls")


@final
@dataclass(frozen=True)
class Checked:
    """`outcome` is about recording. `exact`: outputs bit-equal to eager attention and every attention module that ran
    was seen in full. The parts of an audit of the same model each have a grade; `reasons` say, by part, why one is
    not exact."""

    model_type: str
    outcome: CheckOutcome
    expected: int = 0
    calls: int = 0
    note: str = ""
    depth: Grade = "missing"
    masks: Grade = "missing"
    heads: Grade = "missing"
    ablation: Grade = "missing"
    controls: Grade = "missing"
    reasons: str = ""

    @property
    def complete(self) -> bool:
        """Every part of an audit is there in full."""
        return all(getattr(self, part) == "exact" for part in PARTS)


def check_architecture(model_type: str) -> Checked:
    """Build, run, record, compare with eager attention, and audit."""
    trouble = ""
    try:
        for model in small_models(model_type):
            for inputs in candidate_inputs(model):
                try:
                    plain = _run(_eager(model), inputs)
                except Exception as error:  # an input this architecture does not take; the next may do
                    trouble = trouble or f"{type(error).__name__}: {str(error)[:120]}"
                    continue
                checked = _compare(model_type, model, inputs, plain)
                return replace(checked, **_audited(model, inputs))
    except RequestError as error:
        return Checked(model_type, "not built", note=_one_line(str(error.got)))
    except Exception as error:  # a default configuration that cannot even be made
        return Checked(model_type, "not built", note=_one_line(f"{type(error).__name__}: {error}"))
    unknown = "its forward pass takes none of the inputs that are tried: ids, pixels, sound features"
    return Checked(model_type, "not run", note=_one_line(trouble or unknown))


def _audited(model: Any, inputs: dict[str, Tensor]) -> dict[str, Any]:
    try:
        grades = graded(audit(model, inputs=inputs))
    except Exception as error:  # an audit that ends with an error must show in the table
        return {"reasons": _one_line(f"no audit: {reason_of(error)}")}
    reasons = "; ".join(f"{part}: {why[:320]}" for part, (_, why) in grades.items() if why)
    return {**{part: grade for part, (grade, _) in grades.items()}, "reasons": " ".join(reasons.split())}


def graded(found: AuditFindings) -> dict[str, tuple[Grade, str]]:
    """How much of each part an audit has, and why not all of it."""
    missing = found.missing
    stacks = [why for part, why in missing.items() if part.startswith("depth of ")]
    seen = found.coverage
    unnamed = [one for one in found.masks if one.name is None]
    unseen = missing.get("mask", "")
    if not unseen and seen is not None and (seen.missed or not found.masks):
        unseen = seen.reason
    unnamed_reason = f"{len(unnamed)} of {len(found.masks)} calls: {unnamed[0].reason}" if unnamed else ""
    controls = [why for part, why in missing.items() if part.startswith("control")]
    return {
        "depth": _grade(found.depth, stacks[0] if stacks else ""),
        "masks": _grade(len(found.masks) > len(unnamed), unseen or unnamed_reason),
        "heads": _grade(found.heads, missing.get("heads", "")),
        "ablation": _grade(found.ablation, missing.get("ablation", "")),
        "controls": _grade(any(one.rows for one in found.controls), controls[0] if controls else ""),
    }


def _grade(some: object, reason: str) -> tuple[Grade, str]:
    if not some:
        return "missing", reason or "there is none in this model"
    return ("partial", reason) if reason else ("exact", "")


def _compare(model_type: str, model: Any, inputs: dict[str, Tensor], plain: list[Tensor]) -> Checked:
    try:
        with recorded(model, lambda call: None) as recording:
            seen = _run(model, inputs)
    except Exception as error:  # recording broke a model that runs without it: that must show in the table
        return Checked(model_type, "differs", note=_one_line(f"{type(error).__name__}: {error}"))
    coverage = recording.coverage()
    calls = sum(coverage.calls.values())
    equal = len(seen) == len(plain) and all(map(_same, seen, plain))
    outcome: CheckOutcome
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
    """Eager attention in every submodel that can switch; one of another type may, inside a model that cannot."""
    from transformers import PreTrainedModel

    for part in model.modules():
        if isinstance(part, PreTrainedModel) and part._can_set_attn_implementation():
            part.set_attn_implementation("eager")
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


TABLE = "architectures.csv"
MOST_USED = "most_used.csv"


def most_used() -> dict[str, str]:
    """The sixty model types that people use most, each with why it is among them."""
    text = resources.files("rankfall.models.architectures").joinpath(MOST_USED).read_text()
    return {row["model_type"]: row["why"] for row in csv.DictReader(text.splitlines())}


def committed_table() -> dict[str, dict[str, str]]:
    """The measured table that ships with the package, by model type."""
    text = resources.files("rankfall.models.architectures").joinpath(TABLE).read_text()
    return {row["model_type"]: row for row in csv.DictReader(text.splitlines())}


def coverage_table() -> list[dict[str, Any]]:
    """One record per architecture of the installed library.

    `reach` is read from the installed source; everything else was measured with the version in `measured_with`, which
    may be another: `current` says whether it is this one.
    """
    version = metadata.version("transformers")
    measured = committed_table()
    records = []
    for model_type, reach in installed_architectures().items():
        row = measured.get(model_type, {})
        records.append(
            {
                "model_type": model_type,
                "reach": reach,
                "outcome": row.get("outcome", NOT_MEASURED),
                "expected": int(row.get("expected") or 0),
                "calls": int(row.get("calls") or 0),
                "note": row.get("note", ""),
                **{part: row.get(part, "missing") for part in PARTS},
                "reasons": row.get("reasons", ""),
                "measured_with": row.get("transformers"),
                "current": row.get("transformers") == version,
            }
        )
    return records
