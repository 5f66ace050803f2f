"""What one would change, from what the other reasons found. Suggestions to try, not theorems about this model."""

from __future__ import annotations

from collections.abc import Sequence

from rankfall.audit.verdict.reason import Reason

TOPIC = "what to change"
# Losing more than this share of the effective rank in one layer makes that layer worth a look.
STEEP = 0.3


def advice(status: str, reasons: Sequence[Reason]) -> Reason:
    """One sentence per finding that calls for something; says so when nothing does."""
    found = {reason.topic: dict(reason.numbers) for reason in reasons}
    lines: list[str] = []
    heads = found.get("head rank")
    if heads and heads.get("mse_lower_bound", 0.0) > 0:
        lines.append(
            f"if the task needs comparisons across the whole width, fewer heads of higher rank at equal parameters: "
            f"`rankfall plan --dim {heads['width']:.0f} --layers L --context N` lists them"
        )
    if status != "kept":
        lines.append(
            "tokens grow alike: try a local mask, a stronger residual, a norm before instead of after the branch, "
            "or fewer layers; `rankfall simulate` shows what each does"
        )
    if "sinks" in found:
        lines.append("a sink dominates raw numbers: judge this model by tokens of length one, as done here")
    if not lines:
        lines.append("nothing here calls for a change")
    return Reason(TOPIC, "; ".join(lines), {})
