"""B-fig2 and B-fig3 on real weights: mu by depth of pretrained models with parts of their blocks taken out.

The blocks are the model's own, replayed in float64, each verified against the traced pass before it is used.
Full models under other masks than their own are run as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, final

from rankfall.attention.masks import Causal, CausalWindow, Complete, Mask, Window
from rankfall.audit.ablation import ablate, whole_under
from rankfall.audit.ablation.variants import ATTENTION, FULL, WITH_NORM
from rankfall.reproduce.base import Claim, Outcome, Progress, Reproduction, Scale, silent
from rankfall.reproduce.pretrained import Subject, subjects
from rankfall.reproduce.pretrained_figure import draw_ablations

if TYPE_CHECKING:
    import pandas as pd

MASKS: tuple[Mask, ...] = (Complete(), Causal(), Window(4), CausalWindow(4))
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


@final
class WuFig2Pretrained(Reproduction):
    id: ClassVar[str] = "wu/fig2-pretrained"
    title: ClassVar[str] = (
        "mu by depth on real weights: attention, + norm, + residual, both, full; masks, temperatures"
    )
    statements: ClassVar[tuple[str, ...]] = ("B-fig2", "B-fig3", "B-thm1")

    def run(self, scale: Scale, progress: Progress = silent) -> Outcome:
        """Ablate every subject as it is; then attention, with the norm and in the full model, under four masks."""
        import pandas as pd

        notes: list[str] = []
        parts: list[pd.DataFrame] = []
        changes: list[pd.DataFrame] = []
        worst = 0.0
        for number, subject in enumerate(subjects(scale, notes)):
            inputs = _inputs(subject, TEXTS[scale])
            told = _quarters(progress, number, subject.label)
            whole = ablate(subject.network, inputs, progress=told(0))
            hot = ablate(
                subject.network,
                inputs,
                variants=(ATTENTION,),
                scalings=("matched",),
                temperatures=TEMPERATURES,
                masks=MASKS,
                progress=told(1),
            )
            normed = ablate(
                subject.network,
                inputs,
                variants=(WITH_NORM,),
                scalings=("raw",),
                masks=MASKS,
                progress=told(2),
            )
            for done in (whole, hot, normed):
                if done.refusal:
                    notes.append(f"{subject.label}: {done.refusal}")
                worst = max(worst, done.verified or 0.0)
            under = whole_under(subject.network, inputs, MASKS, told(3))
            parts.append(_frame(subject, whole.rows))
            own = [row for row in (*hot.rows, *normed.rows) if row["mask"] is not None]
            changes.append(_frame(subject, (*own, *under)))
        blocks, variations = pd.concat(parts), pd.concat(changes)
        return Outcome(
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


def _frame(subject: Subject, found: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Means over texts, layer by layer."""
    import pandas as pd

    keys = ["variant", "scaling", "temperature", "mask", "layer"]
    rows = pd.DataFrame(list(found), columns=[*keys, "mu", "relative_mu", "effective_rank", "text"])
    rows["mask"] = rows["mask"].fillna("own")
    means = rows.groupby(keys, as_index=False)[["mu", "relative_mu", "effective_rank"]].mean()
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


REPRODUCTION = WuFig2Pretrained()
