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
    return f"""import rankfall

result = rankfall.simulate(
    mask={state.mask!r},
    norm={state.norm!r},
    value={state.value!r},
    query_key={state.query_key!r},
    tokens={state.tokens},
    width={state.width},
    layers={state.depth},
    temperature={state.temperature!r},
    heads={state.heads},
    residual={state.residual!r},
    placement={state.placement!r},
    seed={state.seed},
    thin={thinning(state.depth)},
)
for row in result.layers:
    print(row["layer"], row["log10_mu"], row["effective_rank"])
print("tail rate", result.tail_rate, "bound applies", result.bound_applies)
"""


def head_commands(state: HeadState) -> tuple[str, str]:
    """`rankfall bounds` for the floor and `rankfall plan` for the table."""
    state = possible(state)
    return (
        f"rankfall bounds --dim {state.dim} --rank {state.rank} --heads {state.heads}",
        f"rankfall plan --dim {state.dim} --layers {state.layers} --context {state.context} --no-time",
    )


def head_python(state: HeadState) -> str:
    """A script that prints the floor."""
    state = possible(state)
    return f"""import rankfall

floor = rankfall.bounds(width={state.dim}, rank={state.rank}, heads={state.heads})
print("floor", floor.mse_lower_bound)
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
