"""B-fig2 on real weights: blocks taken apart, under four masks and three temperatures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from rankfall.drawing.canvas import COLOURS, canvas
from rankfall.figures.base import Claim, FigureOutcome, Reproduction, Scale
from rankfall.figures.pretrained import Subject, subjects
from rankfall.masks import Causal, CausalWindow, Complete, Mask, Window
from rankfall.models.ablation.ablation import ATTENTION, FULL, WITH_NORM, ablate, whole_under
from rankfall.models.ablation.rows import QUICK, AblationRow
from rankfall.progress import Progress, silent

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


FLOOR = 1e-17
FULL_FLOOR = 1e-3
MASKED = ("attention", "attention + norm", "full model")
PANELS = ("parts of the block", *(f"{variant}, four masks" for variant in MASKED), "temperatures, complete mask")
LINES = {"raw": "-", "matched": ":"}


FOUR_MASKS: tuple[Mask, ...] = (Complete(), Causal(), Window(4), CausalWindow(4))
# A local mask and the global one that it is a part of.
PAIRS = (("window:4", "complete"), ("causal-window:4", "causal"))
TEMPERATURES = (1 / 64, 1.0, 64.0)
TEXTS: dict[Scale, int] = {"smoke": 1, "quick": 1, "paper": 8}

COLLAPSED = 1e-5
HELD = 0.1


NOTES = (
    "claims about attention alone are about the scale-matched replay; raw, a pre-norm model's tokens can grow until"
    " softmax saturates, and then do not collapse: see the points",
    "the thresholds of the claims were set knowing what these two models do; they guard against change",
)


def run(scale: Scale, progress: Progress = silent) -> FigureOutcome:
    """Ablate every subject as it is; then attention, with the norm and in the full model, under four masks."""
    import pandas as pd

    notes: list[str] = []
    parts: list[pd.DataFrame] = []
    changes: list[pd.DataFrame] = []
    worst = 0.0
    for number, subject in enumerate(subjects(scale, notes)):
        inputs = _inputs(subject, TEXTS[scale])
        told = _quarters(progress, number, subject.label)
        whole = ablate(subject.network, inputs, measures=QUICK, progress=told(0))
        hot = ablate(
            subject.network,
            inputs,
            variants=(ATTENTION,),
            scalings=("matched",),
            temperatures=TEMPERATURES,
            masks=FOUR_MASKS,
            measures=QUICK,
            progress=told(1),
        )
        normed = ablate(
            subject.network,
            inputs,
            variants=(WITH_NORM,),
            scalings=("raw",),
            masks=FOUR_MASKS,
            measures=QUICK,
            progress=told(2),
        )
        for done in (whole, hot, normed):
            if done.refusal:
                notes.append(f"{subject.label}: {done.refusal}")
            worst = max(worst, done.verified or 0.0)
        under = whole_under(subject.network, inputs, FOUR_MASKS, told(3))
        parts.append(_frame(subject, whole.rows))
        own = [row for row in (*hot.rows, *normed.rows) if row.mask is not None]
        changes.append(_frame(subject, (*own, *under)))
    blocks, variations = pd.concat(parts), pd.concat(changes)
    return FigureOutcome(
        points=_points(blocks),
        claims=(*_part_claims(blocks), *_change_claims(variations)),
        tables={"blocks": blocks, "masks_and_temperatures": variations},
        draw=lambda: draw_ablations(blocks, variations),
        notes=(*notes, *NOTES, f"replayed blocks differ from the traced pass by at most {worst:.1g}, relative"),
    )


def _quarters(progress: Progress, number: int, label: str) -> Callable[[int], Progress]:
    """What to tell during each quarter of the work on one subject of four."""
    return lambda quarter: lambda what, share: progress(f"{label}, {what}", (number + (quarter + share) / 4) / 4)


def _inputs(subject: Subject, texts: int) -> dict[str, Any]:
    given = subject.batch.inputs(subject.network)
    return {name: value[:texts] for name, value in given.items() if name in ("input_ids", "attention_mask")}


def _frame(subject: Subject, found: Sequence[AblationRow]) -> pd.DataFrame:
    """Means over texts, layer by layer."""
    import pandas as pd

    keys = ["variant", "scaling", "temperature", "mask", "layer"]
    rows = pd.DataFrame([row.record() for row in found], columns=[*keys, "mu", "relative_mu", "energy_rank", "text"])
    rows["mask"] = rows["mask"].fillna("own")
    means = rows.groupby(keys, as_index=False)[["mu", "relative_mu", "energy_rank"]].mean()
    return means.assign(model=subject.model, weights=subject.weights)


def _ended(rows: pd.DataFrame) -> float:
    return float(rows.sort_values("layer")["relative_mu"].iloc[-1])


def _points(table: pd.DataFrame) -> list[dict[str, Any]]:
    points = []
    for (model, weights, variant, scaling), rows in table.groupby(["model", "weights", "variant", "scaling"]):
        where = {"model": model, "weights": weights, "variant": variant, "scaling": scaling}
        points.append({**where, "published": None, "ours": _ended(rows), "agrees": None})
    return points


def _part_claims(table: pd.DataFrame) -> list[Claim]:
    """Attention alone collapses, and with the norm too; the full model does not."""
    claims = []
    for (model, weights), rows in table.groupby(["model", "weights"]):
        who = f"{model}, {weights}"
        ends = {
            name: _ended(rows[(rows["variant"] == name) & (rows["scaling"] == scaling)])
            for name, scaling in ((ATTENTION.name, "matched"), (WITH_NORM.name, "raw"), (FULL, "raw"))
        }
        if weights == "pretrained":
            for name in (ATTENTION.name, WITH_NORM.name):
                claims.append(
                    Claim(f"{who}: {name} ends below {COLLAPSED:g}", ends[name] < COLLAPSED, f"{ends[name]:.2g}")
                )
            claims.append(
                Claim(f"{who}: the full model stays above {HELD:g}", ends[FULL] > HELD, f"{ends[FULL]:.2g}")
            )
        claims.append(
            Claim(
                f"{who}: attention alone ends lower than the full model",
                ends[ATTENTION.name] < ends[FULL],
                f"{ends[ATTENTION.name]:.2g} and {ends[FULL]:.2g}",
            )
        )
    return claims


def _change_claims(table: pd.DataFrame) -> list[Claim]:
    """Local masks and small temperatures slow the collapse; under no mask does the full model collapse."""
    claims = []
    for (model, weights), rows in table.groupby(["model", "weights"]):
        who = f"{model}, {weights}"
        # Early: the deep end of a collapse is at the floor of float64 for every setting.
        early = rows[rows["layer"] == min(3, rows["layer"].max())]
        for variant in (ATTENTION.name, WITH_NORM.name):
            mine = early[(early["variant"] == variant) & (early["temperature"] == 1.0)]
            ends = mine.set_index("mask")["relative_mu"]
            for local, wide in PAIRS:
                claims.append(
                    Claim(
                        f"{who}: {variant} under {local} has collapsed less after three layers than under {wide}",
                        float(ends[local]) > float(ends[wide]),
                        f"{ends[local]:.2g} and {ends[wide]:.2g}",
                    )
                )
        claims += _temperature_claims(who, early[early["variant"] == ATTENTION.name])
        if weights == "pretrained":
            full = rows[rows["variant"] == FULL].groupby("mask")[["layer", "relative_mu"]].apply(_ended)
            claims.append(
                Claim(
                    f"{who}: the full model stays above {HELD:g} under each of the four masks",
                    bool((full > HELD).all()),
                    ", ".join(f"{mask} {value:.2g}" for mask, value in full.items()),
                )
            )
    return claims


def _temperature_claims(who: str, early: pd.DataFrame) -> list[Claim]:
    by_temperature = early.pivot(index="mask", columns="temperature", values="relative_mu")
    cold, hot = by_temperature[TEMPERATURES[0]], by_temperature[TEMPERATURES[-1]]
    gain = cold / hot
    claims = [
        Claim(
            f"{who}: attention at temperature 1/64 has collapsed less after three layers than at 64",
            float(cold["complete"]) > float(hot["complete"]),
            f"{cold['complete']:.2g} and {hot['complete']:.2g}",
        )
    ]
    for local, wide in PAIRS:
        claims.append(
            Claim(
                f"{who}: temperature 1/64 instead of 64 slows attention more under {wide} than under {local}",
                float(gain[wide]) > float(gain[local]),
                f"after three layers by factors of {gain[wide]:.2g} and {gain[local]:.2g}",
            )
        )
    return claims


def draw_ablations(blocks: pd.DataFrame, variations: pd.DataFrame) -> Figure:
    """Relative mu by layer, on a logarithmic scale, clipped at what float64 resolves."""
    subjects: list[tuple[str, str]] = sorted(set(zip(blocks["model"], blocks["weights"], strict=True)))
    figure, axes = canvas(len(subjects), len(PANELS), size=(4.0, 3.0))
    for row, (model, weights) in enumerate(subjects):
        mine = blocks[(blocks["model"] == model) & (blocks["weights"] == weights)]
        changed = variations[(variations["model"] == model) & (variations["weights"] == weights)]
        plain = changed[changed["temperature"] == 1.0]
        alone = changed[changed["variant"] == "attention"]
        _parts(axes[row, 0], mine)
        for column, variant in enumerate(MASKED, 1):
            _lines(axes[row, column], plain[plain["variant"] == variant], "mask")
        _lines(axes[row, -1], alone[alone["mask"] == "complete"], "temperature")
        for axis, title in zip(axes[row], PANELS, strict=True):
            axis.set_title(f"{model}, {weights}: {title}", fontsize=9)
            axis.set_yscale("log")
            axis.set_xlabel("layer")
        # Nothing falls far here: one scale for all, so that small wiggles do not look like a fall.
        axes[row, 3].set_ylim(FULL_FLOOR, 1.5)
        axes[row, 0].set_ylabel(r"relative $\mu$")
    # In the second row, where curves leave room; the colours are the same everywhere.
    legends = {0: "dotted: scale-matched", 1: "mask", len(PANELS) - 1: "temperature"}
    for column, title in legends.items():
        axis = axes[min(1, len(subjects) - 1), column]
        axis.legend(fontsize=7, title=title, title_fontsize=7, loc="center right")
    return figure


def _parts(axis: Any, rows: pd.DataFrame) -> None:
    for number, variant in enumerate(rows["variant"].drop_duplicates()):
        for scaling, line in LINES.items():
            curve = rows[(rows["variant"] == variant) & (rows["scaling"] == scaling)].sort_values("layer")
            if len(curve):
                values = curve["relative_mu"].clip(lower=FLOOR)
                named = {"label": variant} if scaling == "raw" else {"gid": variant, "label": "_scale-matched"}
                axis.plot(curve["layer"], values, line, color=COLOURS[number], **named)


def _lines(axis: Any, rows: pd.DataFrame, column: str) -> None:
    for number, (value, curve) in enumerate(rows.groupby(column)):
        curve = curve.sort_values("layer")
        label = str(Fraction(value)) if isinstance(value, float) else str(value)
        axis.plot(curve["layer"], curve["relative_mu"].clip(lower=FLOOR), color=COLOURS[number], label=label)


REPRODUCTION = Reproduction(
    "wu/fig2-pretrained",
    "mu by depth on real weights: attention, + norm, + residual, both, full; masks, temperatures",
    ("B-fig2", "B-fig3", "B-thm1"),
    run,
)
