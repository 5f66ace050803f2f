"""The command line and the Python that give what the page shows."""

from __future__ import annotations

import shlex

from rankfall.explorer.head_curves import possible
from rankfall.explorer.state import HeadState, TokenState
from rankfall.explorer.token_curves import thinning


def token_command(state: TokenState) -> str:
    """`rankfall simulate` with every setting spelled out."""
    options = {
        "mask": state.mask,
        "tokens": state.tokens,
        "dim": state.width,
        "layers": state.depth,
        "temperature": _number(state.temperature),
        "norm": state.norm,
        "placement": state.placement,
        "value": state.value,
        "query-key": state.query_key,
        "heads": state.heads,
        "residual": _number(state.residual),
        "seed": state.seed,
        "thin": thinning(state.depth),
    }
    words = ["rankfall", "simulate"]
    for name, value in options.items():
        words += [f"--{name}", str(value)]
    return shlex.join(words)


def token_python(state: TokenState) -> str:
    """A script that prints log10 mu and the effective rank of every recorded layer."""
    return f"""from rankfall.masks import parse_schedule
from rankfall.norms import parse_norm
from rankfall.dynamics.step import Rule
from rankfall.dynamics.weights import WeightRecipe
from rankfall.dynamics.experiment import Experiment, run

experiment = Experiment(
    masks=(parse_schedule({state.mask!r}),),
    recipe=WeightRecipe({state.width}, query_key={state.query_key!r}, value={state.value!r}, heads={state.heads}),
    tokens={state.tokens},
    layers={state.depth},
    rule=Rule(parse_norm({state.norm!r}), placement={state.placement!r}, residual={state.residual!r}),
    temperature={state.temperature!r},
    seeds=({state.seed},),
    thin={thinning(state.depth)},
)
report = run(experiment)[0]
for row in report.records:
    print(row["layer"], row["log10_mu"], row["effective_rank"])
print("tail rate", report.tail_rate, "bound applies", report.theorem.applies)
"""


def head_commands(state: HeadState) -> tuple[str, str]:
    """`rankfall bounds` for the floor and `rankfall plan` for the table."""
    state = possible(state)
    return (
        f"rankfall bounds --dim {state.dim} --rank {state.rank} --heads {state.heads}",
        f"rankfall plan --dim {state.dim} --layers {state.layers} --context {state.context} --no-time",
    )


def head_python(state: HeadState) -> str:
    """A script that prints the floor and the predicted errors of random heads."""
    state = possible(state)
    return f"""from rankfall.theory.head_bounds import HeadClass, mse_floor
from rankfall.theory.random_features.learning_curve import predicted_error

floor = mse_floor(HeadClass(dim={state.dim}, rank={state.rank}), {state.heads})
print("floor", floor.mse, "without a useful head", floor.baseline)
for design in ("independent", "signed"):
    print(design, predicted_error(design, {state.dim}, {state.heads}))
"""


def token_words(state: TokenState) -> str:
    """Both, as Markdown."""
    return f"```sh\n{token_command(state)}\n```\n```python\n{token_python(state)}```"


def head_words(state: HeadState) -> str:
    """Commands and script, as Markdown."""
    commands = "\n".join(head_commands(state))
    return f"```sh\n{commands}\n```\n```python\n{head_python(state)}```"


def _number(value: float) -> str:
    return repr(int(value)) if value == int(value) else repr(value)
