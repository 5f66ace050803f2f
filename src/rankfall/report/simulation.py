"""A simulation as a report: does it collapse, how fast, what was predicted, and the layers themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from rankfall.drawing.collapse import curve_of, draw_collapse
from rankfall.dynamics.experiment import MaskResult
from rankfall.provenance import provenance
from rankfall.report.document import Answer, Document, Grid, Level, Picture, Section
from rankfall.report.verb_definitions import definitions_for

LAWS = {
    "exponential": "tokens collapse exponentially: differences fall by the factor {rate:.4g} a layer",
    "cubic": "tokens collapse cubically: the logarithm of their differences triples with every layer",
    "equal": "all tokens became exactly equal",
    "none": "tokens do not collapse within this depth",
}


def simulation_document(reports: Sequence[MaskResult], title: str, command: str) -> Document:
    """The report of one experiment: an answer per mask, one picture, the rates, the hypotheses, every layer."""
    import pandas as pd

    layers = pd.DataFrame([{"mask": str(one.mask), **row} for one in reports for row in one.records])
    hypotheses = pd.DataFrame(
        [
            {"mask": str(one.mask), "theorem": one.theorem.statement, **asdict(hypothesis)}
            for one in reports
            for hypothesis in one.theorem.hypotheses
        ]
    )
    caption = (
        "Dots mark where ordinary float64 code goes wrong; dotted lines are the tail that the second eigenvalue of"
        " uniform attention predicts."
    )
    drawn = draw_collapse([curve_of(one) for one in reports], title)
    return Document(
        title="Token rank by depth, simulated",
        summary=title,
        answers=[_answer(one) for one in reports],
        sections=[
            Section(
                "Collapse",
                (),
                [
                    Picture("collapse", "mu and token rank by depth", caption, drawn),
                    Grid(
                        "rates",
                        "Rates, factor per layer",
                        pd.DataFrame([_rates(one) for one in reports]),
                        definitions=definitions_for("simulate"),
                    ),
                ],
            ),
            Section(
                "Hypotheses of the theorems",
                (),
                [Grid("hypotheses", "One by one", hypotheses, definitions=definitions_for("simulate"))],
            ),
            *([first] if (first := _first_token(reports)) is not None else []),
            Section("Layers", (), [Grid("layers", "Every layer", layers, definitions=definitions_for("simulate"))]),
        ],
        command=command,
        provenance=provenance(),
    )


def _first_token(reports: Sequence[MaskResult]) -> Section | None:
    import pandas as pd

    rows = pd.DataFrame([{"mask": str(one.mask), **row} for one in reports for row in one.first_token])
    if rows.empty:
        return None
    said = "The first token's share in all tokens when attention follows positions alone."
    return Section(
        "First token", (said,), [Grid("first_token", "By depth", rows, definitions=definitions_for("simulate"))]
    )


def _answer(report: MaskResult) -> Answer:
    rate = report.rates[0]
    if rate is None:
        return Answer(f"{report.mask}: does it collapse?", "too few layers to tell")
    reasons = [f"fitted on layers {rate.first_layer} to {rate.last_layer}, R² {rate.r_squared:.4f}"]
    if report.tail_rate is not None:
        besides = "" if report.tail_reason is None else f"; {report.tail_reason}"
        reasons.append(f"{_theory(report)}: {report.tail_rate:.4g}{besides}")
    if report.shrink_rate is not None:
        reasons.append(f"with the sink all tokens shrink by {report.shrink_rate:.4g} a layer in the end")
    theorem = report.theorem
    if theorem.bound is not None:
        reasons.append(f"{theorem.statement} applies and promises at most {theorem.bound.rate:.6g}")
    else:
        reasons.append(f"{theorem.statement} does not apply: {theorem.reason}")
    level: Level = "good" if rate.law == "none" else "warn"
    verdict = LAWS[rate.law].format(rate=rate.rate)
    return Answer(f"{report.mask}: does it collapse?", verdict, level, reasons)


def _theory(report: MaskResult) -> str:
    if report.shrink_rate is None:
        return "second eigenvalue of uniform attention"
    return "second eigenvalue of uniform attention with the sink over the first"


def _rates(report: MaskResult) -> dict[str, object]:
    return {
        "mask": str(report.mask),
        "radius": report.theorem.facts.radius,
        "law": report.law,
        "measured": report.measured_rate,
        "second eigenvalue": report.tail_rate,
        "theorem's bound": report.bound_rate,
    }
