"""Write docs/api.md: every public name with its signature, what it is, and an example that the tests run.

`python scripts/api_page.py` writes the page; a test fails when it is out of date.
"""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import rankfall

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
WIDEST = 100

INTRODUCTION = """\
# The Python API

`import rankfall` is light and gives the names on this page; each is loaded when it is first used. What is exported is
public and stable from here on: a change that breaks a caller gets a new major version. Everything else is internal
and may move. `python scripts/api_page.py` writes this page; a test fails when it is out of date, and runs every
example.

One name for each quantity everywhere: `width`, `tokens`, `heads`, `rank`, `layers`, `seed`. Masks and norms are given
by name (`"window:4"`) or as objects (`rankfall.masks.Window(4)`). `progress` is a function of what is being done and
the share that is done, between 0 and 1. A wrong request raises `rankfall.RequestError`, which says what was required,
what came and what to do.

Every result has a short `repr`, a view in notebooks, and:

| member | gives |
|---|---|
| `record()` | plain values, as the command prints them with `--json` |
| `tables()`, `to_frame()` | pandas tables by name; the main one |
| `plot()`, `plot("picture.png")` | a Matplotlib figure, also written to a file |
| `save("report")` | a folder with one page, every table and every picture; returns the page's path |
"""

# Examples run in this order and share their names.
SECTIONS: dict[str, dict[str, str]] = {
    "Observe a model": {
        "audit": """\
import rankfall
import torch
from transformers import BertConfig, BertModel

sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
model, ids = BertModel(BertConfig(vocab_size=100, **sizes)), torch.randint(100, (1, 16))
audited = rankfall.audit(model, inputs=ids)  # or a name, a folder, a GGUF file, a hub id, with a text
print(audited.verdict.headline, audited.heads[0], audited.save("report"))""",
        "AuditResult": """\
audited.tables()["heads"], audited.boundaries[-1].values["unit"]["effective_rank"]
assert audited.failures("effective_rank < 1 at last") == []""",
        "compare": """\
other = BertModel(BertConfig(vocab_size=100, **sizes))
compared = rankfall.compare(model, other, inputs=ids)""",
        "ComparisonResult": """\
print(compared.verdicts, compared.changes, compared.first.record["verdict"]["statuses"])
compared.plot("both.png")""",
        "series": """\
checkpoints = rankfall.series([model, other], inputs=ids)  # or "runs/checkpoint-*", "org/name@{step1,step9}\"""",
        "SeriesResult": """\
print(checkpoints.verdict.headline, checkpoints.failed, checkpoints.to_frame())
checkpoints.plot("layers-by-checkpoints.png")""",
        "coverage": """\
covered = rankfall.coverage(["llama"])  # measured now; without names, the table that ships""",
        "CoverageResult": """\
print(covered.exact, covered.counts)""",
        "survey": """\
surveyed = rankfall.survey(["gpt2", "gemma"])  # every model type of transformers without names""",
        "SurveyResult": """\
departing = [shape.model_type for shape in surveyed.models if shape.departs]
print(departing, surveyed.summary)""",
        "RankMonitor": """\
layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
network, history = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), []
with rankfall.RankMonitor(network, log=history, every=1):
    network(torch.randn(4, 8, 16))""",
        "RankWarning": """\
import warnings

warnings.simplefilter("ignore", rankfall.RankWarning)""",
        "trainer_callback": """\
callback = rankfall.trainer_callback(every=50)  # transformers: callback.attach(trainer)""",
        "lightning_callback": """\
# Trainer(callbacks=[rankfall.lightning_callback(model="network", every=50)])""",
    },
    "Simulate and predict": {
        "simulate": """\
simulated = rankfall.simulate("causal", "none", tokens=16, width=8, layers=60)
print(simulated.measured_rate, simulated.tail_rate, simulated.bound_applies)""",
        "SimulationResult": """\
several = rankfall.simulate(["causal", rankfall.masks.Window(4)], tokens=16, width=8, layers=60)
print(several.layers[-1]["log10_mu"], several.others[0].mask, several.to_frame())""",
        "equilibrium": """\
built = rankfall.equilibrium(tokens=8, width=4, rank=3, stable=True)""",
        "EquilibriumResult": """\
print(built.rank, built.stable, built.spectral_radius)
assert torch.allclose(built.layer.step(built.tokens), built.tokens)""",
        "bounds": """\
print(rankfall.bounds(width=64, rank=8, heads=8).mse_lower_bound)  # 0.178
bounded = rankfall.bounds(width=64, rank=8, error=0.05)""",
        "BoundsResult": """\
print(bounded.heads_needed, bounded.hypotheses)""",
        "plan": """\
planned = rankfall.plan(width=256, layers=4, context=256, time=False)""",
        "PlanResult": """\
print(planned.candidates[0]["heads"], planned.implications)
planned.plot("plan.png")""",
    },
    "Train, and compare with the papers": {
        "sweep": """\
swept = rankfall.sweep("smoke", store="runs", dry_run=True)  # without dry_run it trains""",
        "SweepResult": """\
print(swept.estimate["seconds_estimated"], len(swept.runs))""",
        "runs": """\
stored = rankfall.runs("imported", where=["rank=8"], import_results="results/amsel-fig1")""",
        "RunsResult": """\
print(stored.rows[0]["mse_best"], stored.damaged)
stored.plot("error.png")""",
        "reproduce": """\
reproduced = rankfall.reproduce("wu/fig1", scale="smoke")""",
        "ReproductionResult": """\
print(reproduced.holds, reproduced.figures[0]["points"][:1])
reproduced.plot("two-tokens.png")""",
    },
    "Measure tokens": {
        "measure": """\
x = torch.randn(32, 16, dtype=torch.float64)  # or an array; a batch of matrices gives a batch of numbers
print(rankfall.measure(x), rankfall.measure(x, ["mu", "rank"]))""",
        "rankme": """\
print(rankfall.rankme([x, 2 * x]))  # the vectors of several texts, together""",
        **{name: f"print(rankfall.{name}(x))" for name in rankfall._MEASURES},
    },
    "Attention": {
        "Heads": """\
heads = rankfall.Heads.random(heads=8, width=64, rank=4)  # head count and rank are independent""",
        "attention": """\
out = rankfall.attention(heads, torch.randn(2, 256, 64), mask="window:16")  # costs tokens x window""",
        "masks": """\
print(rankfall.masks.Window(4).facts(64).radius, rankfall.masks.parse_mask("causal").dense(3))""",
        "norms": """\
print(rankfall.norms.LayerNorm()(torch.randn(4, 8)), rankfall.norms.parse_norm("rms"))""",
    },
    "Besides": {
        "RequestError": """\
try:
    rankfall.simulate("casual")
except rankfall.RequestError as error:
    print(error.required, error.got, error.remedy)  # did you mean causal?""",
        "__version__": """\
print(rankfall.__version__)""",
    },
}


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for title, names in SECTIONS.items():
        parts.append(f"## {title}\n")
        parts += [entry(name, example) for name, example in names.items()]
    return "\n".join(parts)


def entry(name: str, example: str) -> str:
    """One public name."""
    thing = getattr(rankfall, name)
    shown = f"```text\n{signature(name, thing)}\n```\n\n" if callable(thing) else ""
    members = f"Fields: {', '.join(f'`{one}`' for one in fields(thing))}.\n\n" if is_result(thing) else ""
    return f"### `rankfall.{name}`\n\n{shown}{meaning(name, thing)}\n\n{members}```python\n{example}\n```\n"


def meaning(name: str, thing: Any) -> str:
    """What it is, from its own docstring."""
    if name == "__version__":
        return "The version of the package."
    words = getattr(thing, "definition", None) or inspect.getdoc(thing) or ""
    return str(words).strip()


def is_result(thing: Any) -> bool:
    """Whether it is the class of a result, whose callers read fields and never construct it."""
    from rankfall.api.result import Result

    return isinstance(thing, type) and issubclass(thing, Result)


def fields(kind: Any) -> list[str]:
    """Public fields and properties, and methods that not every result has."""
    from rankfall.api.result import Result

    declared = [one.name for one in dataclasses.fields(kind) if not one.name.startswith("_")]
    others = [
        f"{name}()" if inspect.isfunction(value) else name
        for base in reversed(kind.__mro__)
        for name, value in vars(base).items()
        if not name.startswith("_") and not hasattr(Result, name) and not isinstance(value, classmethod)
        if inspect.isfunction(value) or isinstance(value, property)
    ]
    return list(dict.fromkeys([*declared, *others]))


def signature(name: str, thing: Any) -> str:
    """The call without annotations, which the docstring and an editor give."""
    if is_result(thing) or (isinstance(thing, type) and issubclass(thing, Exception)):
        return f"class rankfall.{name}"
    words, keyword = [], False
    for one in inspect.signature(thing).parameters.values():
        if one.kind is inspect.Parameter.KEYWORD_ONLY and not keyword:
            keyword = True
            if not any(word.startswith("*") for word in words):
                words.append("*")
        star = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(one.kind, "")
        words.append(f"{star}{one.name}{_default(one.default)}")
    line = f"rankfall.{name}({', '.join(words)})"
    return line if len(line) <= WIDEST else f"rankfall.{name}(\n" + _wrapped(words) + ")"


def _default(value: Any) -> str:
    if value is inspect.Parameter.empty:
        return ""
    return f"={getattr(value, '__name__', None) or repr(value)}".replace("'", '"')


def _wrapped(words: list[str]) -> str:
    lines, line = [], "   "
    for word in words:
        if len(line) + len(word) > WIDEST:
            lines.append(line)
            line = "   "
        line += f" {word},"
    return "\n".join([*lines, line]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
