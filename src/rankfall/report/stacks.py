"""Other stacks of blocks in the report of an audit: the answers of each, its curves, its blocks taken apart."""

from __future__ import annotations

from rankfall.drawing.audit import draw_ablation, draw_token_depth
from rankfall.models.result import AuditFindings
from rankfall.models.stacks import StackFindings, first_draws
from rankfall.report.document import Grid, Picture, Section

OF_OTHER_STACKS = {
    "other_stacks": "Other stacks: all measures at every layer",
    "other_stacks_questions": "Other stacks: the numbers behind each answer",
    "other_stacks_controls": "Other stacks: controls",
    "other_stacks_ablation": "Other stacks: blocks taken apart",
}


def stack_sections(result: AuditFindings, tables: dict[str, Grid]) -> list[Section]:
    """One section of pictures for each other stack, and the tables of all of them at the end."""
    if not result.other_stacks:
        return []
    grids = [tables[name] for name in OF_OTHER_STACKS if name in tables]
    found = [
        Section(
            f"The same in {one.label}",
            [f"Blocks of {one.name}, beside those of {result.stack} above."],
            _pictures(one, number, result.model.name, tables),
        )
        for number, one in enumerate(result.other_stacks, 1)
    ]
    return [*found, Section("Tables of other stacks", (), grids)]


def _pictures(one: StackFindings, number: int, model: str, tables: dict[str, Grid]) -> list[Picture]:
    made = [
        Picture(
            f"other_stack_{number}_token_rank",
            f"Token rank by depth in {one.label}",
            "Tokens scaled to length one, beside the controls of this stack; layer 0 is what enters its first block.",
            draw_token_depth(one.boundaries, first_draws(one.controls), f"Token rank by depth, {model}, {one.label}"),
        )
    ]
    if one.ablation:
        table = tables["other_stacks_ablation"].table
        made.append(
            Picture(
                f"other_stack_{number}_parts",
                f"Blocks of {one.label} taken apart",
                "As above; what the blocks take from another stack by cross-attention is left out with the"
                " feed-forward layers, except where a variant names it.",
                draw_ablation(table[table["stack"] == one.name], f"What holds the rank up, {model}, {one.label}"),
            )
        )
    return made
