"""An audit as a report: its verdict first, then the evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankfall.drawing.attention import draw_attention_depth, draw_attention_maps
from rankfall.drawing.audit import draw_ablation, draw_head_ranks, draw_token_depth, draw_views
from rankfall.drawing.key_values import draw_key_values
from rankfall.models.result import AuditFindings
from rankfall.models.stacks import OF_A_STACK
from rankfall.models.thresholds import THRESHOLDS
from rankfall.models.verdict.findings import QUESTIONS, Finding, Status
from rankfall.models.verdict.verdict import Verdict
from rankfall.report.document import Answer, Document, Grid, Level, Picture, Section
from rankfall.report.head_needs import needs_section
from rankfall.report.stacks import OF_OTHER_STACKS, stack_sections
from rankfall.report.verb_definitions import definitions_for

if TYPE_CHECKING:
    import pandas as pd

LEVELS: dict[Status, Level] = {
    **dict.fromkeys(("not aligned", "kept", "not lost", "not dominated"), "good"),
    **dict.fromkeys(("aligned", "reduced", "dominated", "depends", "too little text"), "warn"),
    **dict.fromkeys(("lost", "collapsed"), "bad"),
}
BESIDE = {
    "token rank": "Where is the rank lowest?",
    "mask": "What would attention alone do?",
    "head rank": "How do heads use their rank?",
    "head need": "Are the heads the bottleneck?",
    "head cut": "What does the model lose when its heads are cut?",
    "head bound": "What does the bound say about heads of this shape?",
    "keys and values": "How small a latent could hold keys and values?",
    "attention sinks": "Where does attention rest?",
    "heads that do nothing": "Which heads do nothing?",
    "attention entropy": "How far do heads look around?",
    "attention logits": "How large do logits become?",
    "what holds it up": "What holds the rank up?",
    "what to change": "What would one change?",
}
TITLES = {
    "depth": "All measures at every layer",
    "per_text": "Every text on its own",
    "pooled": "All texts together",
    "sinks": "Massive tokens",
    "controls": "Controls",
    "masks": "Masks that the model used",
    "questions": "The numbers behind each answer",
    "heads": "Every head",
    "key_values": "Keys and values of every layer",
    "key_value_energy": "Energy that a latent of each size keeps",
    "head_needs": "What every head needs",
    "head_cut": "The model with cut heads",
    "head_overlaps": "Overlap of heads' spaces",
    "head_spectra": "Singular values of every head",
    "attention": "What every head attends to",
    "ablation": "Blocks taken apart",
    **OF_OTHER_STACKS,
}


IDLE = (
    f"A cross marks a head that does nothing: {THRESHOLDS.idle_mass:.0%} of its weight rests on one token, on the"
    f" token itself or in a learned sink, or it writes less than {THRESHOLDS.idle_output_share:g} of a fair share"
    " (1/H) of what the heads of its layer write."
)


def audit_document(result: AuditFindings, command: str) -> Document:
    """The report of one audit."""
    verdict = result.verdict
    tables = {
        name: Grid(name, TITLES[name], table, definitions=definitions_for("audit", name))
        for name, table in result.tables().items()
    }
    answers = [
        Answer("What happens to the tokens?", verdict.headline),
        *_answers(verdict, result.stack_label if result.other_stacks else ""),
        *(answer for one in result.other_stacks for answer in _answers(one.verdict, one.label)),
    ]
    sections = [
        _tokens(result, tables),
        _parts(result, tables),
        *stack_sections(result, tables),
        _attention(result, tables),
        _heads(result, tables),
        needs_section(result, tables),
        _key_values(result, tables),
        _masks(tables),
    ]
    if result.model.notes:
        sections.append(Section("Notes on the model", list(result.model.notes)))
    if result.missing:
        lines = [f"{part}: {reason}" for part, reason in result.missing.items()]
        sections.append(Section("What is missing, and why", lines))
    model, text = result.model, result.text
    return Document(
        title=f"Audit of {model.name}",
        summary=f"{model.kind}, {result.layers_told}, {model.parameters:,} parameters, read {text.texts} text(s) of"
        f" {', '.join(str(count) for count in text.tokens)} tokens, loss"
        f" {f'none: {text.loss_reason}' if text.loss is None else f'{text.loss:.2f} nats per token'}.",
        answers=answers,
        sections=[section for section in sections if section.blocks or section.text],
        command=command,
        provenance=result.provenance,
    )


def _answers(verdict: Verdict, stack: str) -> list[Answer]:
    """The answers of a verdict and what stands beside them; with several stacks of blocks, each with its name."""
    where = f"{stack}: " if stack else ""
    return [
        *(
            Answer(
                where + QUESTIONS[one.question], one.status, LEVELS[one.status], [*one.sentences, *_thresholds(one)]
            )
            for one in verdict.findings
        ),
        *(
            Answer((where if reason.topic in OF_A_STACK else "") + BESIDE[reason.topic], reason.text)
            for reason in verdict.reasons
            if reason.topic in BESIDE
        ),
    ]


def _thresholds(finding: Finding) -> list[str]:
    given = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in finding.thresholds.items())
    return [f"thresholds: {given}"] if given else []


def _tokens(result: AuditFindings, tables: dict[str, Grid]) -> Section:
    rows = result.boundaries
    name = result.model.name
    pictures = [
        Picture(
            "token_rank",
            "Token rank by depth",
            "Tokens scaled to length one. The band is a 95 % bootstrap interval over texts. Layer 0 is the"
            " embeddings; the last layer is after the final norm, where the model has one.",
            draw_token_depth(rows, result.control_boundaries(), f"Token rank by depth, {name}"),
        ),
        Picture(
            "views",
            "Four views of the same tokens",
            "Raw numbers are about size as much as about direction: one massive token makes them look"
            " collapsed. Tokens of length one show the directions alone.",
            draw_views(rows, f"Effective and energy rank in four views, {name}"),
        ),
    ]
    shown = ("questions", "depth", "pooled", "sinks", "controls", "per_text")
    grids = [tables[key] for key in shown if key in tables]
    return Section("Token rank by depth", [one.told() for one in result.pooled], [*pictures, *grids])


def _parts(result: AuditFindings, tables: dict[str, Grid]) -> Section:
    if "ablation" not in tables:
        return Section("What holds the rank up")
    picture = Picture(
        "parts",
        "Blocks taken apart",
        "Tokens of length one, medians over passages; below the dotted line a variant counts as collapsed (one whose"
        " energy rank is below 2 does too). The model's own attention modules, replayed without norm, residual or"
        " feed-forward layers, each replay verified first."
        " Scale-matched: one factor a layer gives tokens the size that the layer really got."
        + _chaotic(tables["ablation"].table),
        draw_ablation(tables["ablation"].table, f"What holds the rank up, {result.model.name}"),
    )
    return Section("What holds the rank up", (), [picture, tables["ablation"]])


def _chaotic(rows: pd.DataFrame) -> str:
    """Which raw curves say nothing, from which layer on."""
    if "chaotic" not in rows:
        return ""
    found = rows[rows["chaotic"]].groupby("variant")["layer"].min()
    listed = ", ".join(f"{variant} from layer {layer} on" for variant, layer in found.items())
    said = " Raw curves that say nothing, because rounding of enormous scores decides who attends to whom: "
    return f"{said}{listed}." if listed else ""


def _attention(result: AuditFindings, tables: dict[str, Grid]) -> Section:
    if "attention" not in tables:
        return Section("Attention")
    seen = result.attention[0]
    table, name = tables["attention"].table, result.model.name
    read = (
        "Every row of every text was read."
        if seen.rows == seen.tokens
        else f"{seen.rows} of {seen.tokens} rows of each text were read, drawn evenly; spectra are those of them."
    )
    pictures = [
        Picture(
            "attention_maps",
            "What every head attends to",
            "First map: dark heads look at few of the tokens that they may see. Second: the weight of bright heads"
            " rests on the first token or a learned sink (an attention sink; a massive token, which is long, is"
            " another thing). Third: dark heads write little. " + IDLE,
            draw_attention_maps(table, f"Attention of every head, {name}"),
        ),
        Picture(
            "attention_depth",
            "Attention sinks and logits by depth",
            "Left: above the dotted grey line the first token is an attention sink of the head; black lines are what"
            " equal scores under the mask, or random ones under rotary positions, would give it. Right: logits as the"
            " softmax gets them, over the pairs that the mask allows; the bands are medians over heads.",
            draw_attention_depth(
                table, f"Attention sinks and logits, {name}", tables["masks"].table if "masks" in tables else None
            ),
        ),
    ]
    return Section("Attention", [read], [*pictures, tables["attention"]])


def _heads(result: AuditFindings, tables: dict[str, Grid]) -> Section:
    if "heads" not in tables:
        return Section("Head rank")
    picture = Picture(
        "head_rank",
        "Effective and energy rank of every head",
        "Of the query/key form, by probing the running model. Heads that spread over few directions are dark.",
        draw_head_ranks(tables["heads"].table, f"Head rank, {result.model.name}"),
    )
    return Section("Head rank", (), [picture, tables["heads"]])


def _key_values(result: AuditFindings, tables: dict[str, Grid]) -> Section:
    if "key_values" not in tables:
        return Section("Keys and values")
    layers, energy = tables["key_values"], tables["key_value_energy"]
    picture = Picture(
        "latents",
        "Latents that would hold keys and values",
        "Keys and values of all heads of a layer as one map of its tokens, each scaled to the same energy, tokens"
        " about their mean. Left: medians and ranges over layers. A latent chosen on the tokens it is measured on"
        " looks better than it is; one chosen on other passages looks worse, the more so the less was read."
        " Right: how much of what a layer's own latent keeps (90 % by weights) another layer's would keep.",
        draw_key_values(
            layers.table,
            energy.table,
            [one.overlap for one in result.key_values],
            f"Keys and values, {result.model.name}",
        ),
    )
    return Section("Keys and values", (), [picture, layers, energy])


def _masks(tables: dict[str, Grid]) -> Section:
    return Section("Masks", (), [tables["masks"]] if "masks" in tables else [])
