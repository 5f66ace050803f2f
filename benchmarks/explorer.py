"""How long the page takes to redraw: everything between a moved slider and figures ready to be sent."""

from __future__ import annotations

import time

import torch

from benchmarks._harness import report
from rankfall.explorer import token_curves
from rankfall.explorer.depth_figure import draw_depth
from rankfall.explorer.head_curves import head_curves, plan_rows
from rankfall.explorer.head_figures import draw_heads, draw_ranks
from rankfall.explorer.mask_figures import draw_attention, draw_graph
from rankfall.explorer.motion_figure import draw_motion
from rankfall.explorer.state import HeadState, TokenState

ALLOWED = 0.25
SEEDS = 7
STATES = (
    TokenState(),
    TokenState(mask="causal", tokens=128, width=16),
    TokenState(mask="causal", tokens=128, width=64, depth=64),
    TokenState(mask="window:4", tokens=128, width=64, depth=64),
    TokenState(mask="global-window:1:4", tokens=128, width=64, depth=64, norm="unit", view="3-D"),
    TokenState(mask="random:0.2:0", tokens=128, width=64, depth=64, view="3-D"),
    TokenState(mask="complete", tokens=128, width=64, depth=256),
)


def main() -> None:
    torch.set_num_threads(1)
    _token_tab(STATES[0])
    report("explorer_token_tab", [_row(state) for state in STATES])
    report("explorer_head_tab", [_head_row(dim) for dim in (64, 512, 1024)])


def _row(state: TokenState) -> dict[str, object]:
    """Each seed is a state that the page has not seen: nothing comes from its cache. Medians over seeds.

    `cpu_s` is this process's own time, which a busy machine does not stretch; `wall_s` is what passed. The way to the
    browser and its drawing come on top of both.
    """
    walls, cpus = [], []
    for seed in range(1, SEEDS + 1):
        wall, cpu = time.perf_counter(), time.process_time()
        _token_tab(TokenState(**{**vars(state), "seed": seed}))
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    cpu = sorted(cpus)[SEEDS // 2]
    return {
        "mask": state.mask,
        "tokens": state.tokens,
        "width": state.width,
        "depth": state.depth,
        "view": state.view,
        "cpu_s": cpu,
        "wall_s": sorted(walls)[SEEDS // 2],
        "cpu_within_a_quarter": cpu <= ALLOWED,
    }


def _token_tab(state: TokenState) -> None:
    curves = token_curves.token_curves(state)
    attention = token_curves.attention_at(state, curves, 0)
    for figure in (
        draw_motion(curves, state.view, 0),
        draw_depth(curves, 0),
        draw_attention(attention, state.mask, 0),
        draw_graph(state.mask, state.tokens),
    ):
        figure.to_json()


def _head_row(dim: int) -> dict[str, object]:
    """First a width that the page has not seen, then another rank of it."""
    times = []
    for rank in (2, 3):
        start = time.process_time()
        state = HeadState(dim=dim, rank=rank)
        curves = head_curves(state)
        plan_rows(dim, state.layers, state.context)
        for figure in (draw_heads(state, curves), draw_ranks(state, curves)):
            figure.to_json()
        times.append(time.process_time() - start)
    return {"dim": dim, "new_width_cpu_s": times[0], "new_rank_cpu_s": times[1]}
