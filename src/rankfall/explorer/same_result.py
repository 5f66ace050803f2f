"""The command line and the Python that give what the page shows."""

from __future__ import annotations

import shlex

from rankfall.explorer.head_curves import possible
from rankfall.explorer.state import HeadState, TokenState
from rankfall.explorer.token_curves import followed_column, sink_of, thinning


def settings_of(state: TokenState) -> dict[str, str | float]:
    """Every setting, by the name that `rankfall.simulate` and the command have for it; no sink is left out."""
    sink = sink_of(state)
    return {
        "mask": state.mask,
        "norm": state.norm,
        "value": state.value,
        "query_key": state.query_key,
        "tokens": state.tokens,
        "width": state.width,
        "layers": state.depth,
        "temperature": state.temperature,
        "heads": state.heads,
        "residual": state.residual,
        "placement": state.placement,
        **({} if sink is None else {"sink": sink}),
        "seed": state.seed,
        "thin": thinning(state.depth),
    }


def token_command(state: TokenState) -> str:
    """`rankfall simulate` with every setting spelled out."""
    words = ["rankfall", "simulate"]
    for name, value in settings_of(state).items():
        words += [f"--{name.replace('_', '-')}", value if isinstance(value, str) else _number(value)]
    return shlex.join(words)


def token_python(state: TokenState) -> str:
    """A script that prints log10 mu, effective and energy rank of every recorded layer."""
    column = followed_column(state)
    settings = "".join(f"    {name}={value!r},\n" for name, value in settings_of(state).items())
    return f"""import rankfall

result = rankfall.simulate(
{settings})
for row in result.layers:
    print(row["layer"], row["{column}"], row["effective_rank"], row["energy_rank"])
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
