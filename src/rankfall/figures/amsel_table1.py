"""Table 1 of paper A: width, heads and rank of well-known models, all with H = d/r; and what all the others do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankfall.figures.base import Claim, FigureOutcome, Reproduction, Scale
from rankfall.models.architectures.survey import Survey, survey_configurations
from rankfall.progress import Progress, silent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Widely used families of the years up to the paper, by their names in the library. Of its own table the paper says
# that H = d/r in every row; families of those years that depart are named in the notes.
WELL_KNOWN = (
    "albert",
    "bart",
    "bert",
    "bloom",
    "clip_text_model",
    "deit",
    "distilbert",
    "electra",
    "falcon",
    "gpt2",
    "gpt_neo",
    "gpt_neox",
    "gptj",
    "llama",
    "mistral",
    "mixtral",
    "mpt",
    "opt",
    "phi",
    "roberta",
    "t5",
    "vit",
    "wav2vec2",
    "whisper",
    "xlm-roberta",
)
OLDER_DEPARTURES = ("levit", "mt5", "reformer", "umt5")
PUBLISHED_RATIO = 1.0


def run(scale: Scale, progress: Progress = silent) -> FigureOutcome:
    """Every scale reads the well-known ones; `quick` and `paper` read all configurations for the other claims."""
    import pandas as pd

    known = survey_configurations(WELL_KNOWN)
    every = survey_configurations((*WELL_KNOWN, *OLDER_DEPARTURES))
    if scale != "smoke":
        progress("reading every configuration", 0.1)
        every = survey_configurations()
    points = [
        {
            "model_type": shape.model_type,
            "width": shape.width,
            "heads": shape.heads,
            "kv_heads": shape.kv_heads,
            "head_dim": shape.head_dim,
            "published": PUBLISHED_RATIO,
            "ours": shape.heads_times_rank_over_width,
            "agrees": not shape.departs,
        }
        for shape in known.models
    ]
    return FigureOutcome(
        points=points,
        claims=_claims(every) if scale != "smoke" else (),
        tables={
            "all_models": pd.DataFrame([shape.record() for shape in every.models]),
            "skipped": pd.DataFrame([vars(one) for one in every.skipped], columns=["model_type", "reason"]),
        },
        draw=lambda: _draw(every),
        notes=(
            "published: the paper reports H = d/r for every model of its table; its rows are not repeated here",
            "ours: defaults of configuration classes, not checkpoints",
            *_departures(every),
        ),
    )


def _claims(every: Survey) -> tuple[Claim, ...]:
    counts = every.summary()
    total, equal = counts["with_heads"], counts["equal_to_one"]
    shapes = f"{counts['distinct_equal_to_one']} of {counts['distinct_shapes']} different shapes"
    evidence = f"{equal} of {total}; {shapes}"
    return (
        Claim(
            "H = d/r is the rule: it holds in more than 80 percent of all configuration classes",
            equal > 0.8 * total,
            evidence,
        ),
        Claim(
            "it is no longer universal: some architectures depart from it",
            equal < total,
            f"{total - equal} of {total}",
        ),
        Claim(
            "those that depart mostly spend more on heads, not less: H r > d more often than H r < d",
            counts["above_one"] > counts["below_one"],
            f"{counts['above_one']} above, {counts['below_one']} below",
        ),
    )


def _departures(every: Survey) -> tuple[str, ...]:
    counts: dict[str, Any] = every.summary()
    departing = counts["above_one"] + counts["below_one"]
    largest = sorted(every.models, key=lambda shape: -shape.heads_times_rank_over_width)[:5]
    named = ", ".join(f"{one.model_type} {one.heads_times_rank_over_width:.3g}" for one in largest)
    older = [one for one in every.models if one.model_type in OLDER_DEPARTURES and one.departs]
    return (
        f"{departing} of {counts['with_heads']} depart from H = d/r; largest H r / d: {named}",
        "families of the same years that depart: "
        + (", ".join(f"{one.model_type} {one.heads_times_rank_over_width:.3g}" for one in older) or "none read"),
    )


def _draw(every: Survey) -> Figure:
    from rankfall.drawing.survey import draw_survey

    return draw_survey(
        every.models, f"{len(every.models)} configuration classes of {every.library} by their defaults"
    )


REPRODUCTION = Reproduction(
    "amsel/table1",
    "Heads times rank over width in well-known models, and in all architectures",
    ("A-tab1",),
    run,
    columns={
        "layers": "layers of the model",
        "kv_heads": "heads that have keys and values of their own",
        "heads_times_rank_over_width": "H r / d: 1 is the common choice",
        "rank_over_width": "r / d",
        "grouped": "whether several query heads share keys",
        "derived": "whether the head size was worked out as d / H, not read",
        "latent": "whether keys go through a narrower latent vector",
        "varies": "whether layers differ",
        "stage": "which stage of a staged model was read",
        "part": "which part of a composite model was read",
    },
)
