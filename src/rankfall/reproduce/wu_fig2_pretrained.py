"""B-fig2 and B-fig3 on real weights: mu by depth of pretrained models with parts of their blocks taken out.

The blocks are the model's own, replayed in float64, each verified against the traced pass before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, final

from rankfall.attention.masks import Causal, CausalWindow, Complete, Mask, Window
from rankfall.audit.ablation import Ablation, ablate
from rankfall.audit.ablation.variants import ATTENTION, FULL, WITH_NORM
from rankfall.reproduce.base import Claim, Outcome, Progress, Reproduction, Scale, silent
from rankfall.reproduce.pretrained import Subject, subjects
from rankfall.reproduce.pretrained_figure import draw_ablations

if TYPE_CHECKING:
    import pandas as pd

MASKS: tuple[Mask, ...] = (Complete(), Causal(), Window(4), CausalWindow(4))
TEMPERATURES = (1 / 64, 1.0, 64.0)
TEXTS: dict[Scale, int] = {"smoke": 1, "quick": 1, "paper": 8}

COLLAPSED = 1e-5
HELD = 0.1


@final
class WuFig2Pretrained(Reproduction):
    id: ClassVar[str] = "wu/fig2-pretrained"
    title: ClassVar[str] = (
        "mu by depth on real weights: attention, + norm, + residual, both, full; masks, temperatures"
    )
    statements: ClassVar[tuple[str, ...]] = ("B-fig2", "B-fig3", "B-thm1")

    def run(self, scale: Scale, progress: Progress = silent) -> Outcome:
        """Ablate every subject as it is; then attention with norm under four masks and three temperatures."""
        import pandas as pd

        notes: list[str] = []
        parts: list[pd.DataFrame] = []
        changes: list[pd.DataFrame] = []
        worst = 0.0
        for number, subject in enumerate(subjects(scale, notes)):

            def told(what: str, share: float, at: int = number, label: str = subject.label) -> None:
                progress(f"{label}, {what}", (at + share) / 4)

            inputs = _inputs(subject, TEXTS[scale])
            whole = ablate(subject.network, inputs, progress=told)
            varied = ablate(
                subject.network,
                inputs,
                variants=(ATTENTION,),
                scalings=("matched",),
                temperatures=TEMPERATURES,
                masks=MASKS,
            )
            for done in (whole, varied):
                if done.refusal:
                    notes.append(f"{subject.label}: {done.refusal}")
                worst = max(worst, done.verified or 0.0)
            parts.append(_frame(subject, whole))
            changes.append(_frame(subject, varied))
        blocks, variations = pd.concat(parts), pd.concat(changes)
        return Outcome(
            points=_points(blocks),
            claims=(*_part_claims(blocks), *_change_claims(variations)),
            tables={"blocks": blocks, "masks_and_temperatures": variations},
            draw=lambda: draw_ablations(blocks, variations),
            notes=(*notes, f"replayed blocks differ from the traced pass by at most {worst:.1g}, relative"),
        )


def _inputs(subject: Subject, texts: int) -> dict[str, Any]:
    given = subject.batch.inputs(subject.network)
    return {name: value[:texts] for name, value in given.items() if name in ("input_ids", "attention_mask")}


def _frame(subject: Subject, ablation: Ablation) -> pd.DataFrame:
    """Means over texts, layer by layer."""
    import pandas as pd

    keys = ["variant", "scaling", "temperature", "mask", "layer"]
    rows = pd.DataFrame(list(ablation.rows), columns=[*keys, "mu", "relative_mu", "effective_rank", "text"])
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
    """Figure 3: local masks and small temperatures slow the collapse."""
    claims = []
    for (model, weights), rows in table[table["variant"] == ATTENTION.name].groupby(["model", "weights"]):
        who = f"{model}, {weights}"
        # Early: the deep end of a collapse is at the floor of float64 for every setting.
        early = rows[rows["layer"] == min(3, rows["layer"].max())]
        plain = early[early["temperature"] == 1.0].set_index("mask")["relative_mu"]
        for local, wide in (("window:4", "complete"), ("causal-window:4", "causal")):
            claims.append(
                Claim(
                    f"{who}: attention under {local} has collapsed less after three layers than under {wide}",
                    float(plain[local]) > float(plain[wide]),
                    f"{plain[local]:.2g} and {plain[wide]:.2g}",
                )
            )
        cold = early[early["mask"] == "complete"].set_index("temperature")["relative_mu"]
        claims.append(
            Claim(
                f"{who}: at temperature 1/64 it has collapsed less after three layers than at 64",
                float(cold[1 / 64]) > float(cold[64.0]),
                f"{cold[1 / 64]:.2g} and {cold[64.0]:.2g}",
            )
        )
    return claims


REPRODUCTION = WuFig2Pretrained()
