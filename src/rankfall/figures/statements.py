"""Every statement of the two papers, and where this project makes it concrete: code, tests, figures.

The figures are not listed here: each reproduction names the statements it makes visible. `docs/claims.md` is written
from both, and a test fails when a name here no longer exists or the page is out of date.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rankfall.catalogue import FIGURES

PAPERS = {
    "A": "Amsel, Yehudai, Bruna: On the Benefits of Rank in Attention Layers (arXiv:2407.16153)",
    "B": "Wu, Ajorlou, Wang, Jegelka, Jadbabaie: On the Role of Attention Masks and LayerNorm in Transformers "
    "(arXiv:2405.18781)",
}


@dataclass(frozen=True)
class Statement:
    """A statement in our own words; `code` are dotted names, `tests` are files under tests/."""

    id: str
    says: str
    code: tuple[str, ...]
    tests: tuple[str, ...]
    note: str = ""

    @property
    def figures(self) -> Iterator[str]:
        """The reproductions that make it visible."""
        return (name for name in FIGURES.names if self.id in FIGURES[name].statements)


ALL_STATEMENTS: tuple[Statement, ...] = (
    Statement(
        "A-target",
        "The target: of N points on the sphere, the one nearest to the query (or farthest from it).",
        ("theory.targets.nearest_neighbour", "theory.targets.farthest_neighbour", "tasks"),
        ("theory/test_targets.py", "tasks/test_tasks.py"),
    ),
    Statement(
        "A-fact",
        "One full-rank head represents the target at any context length.",
        ("constructions.full_rank_head.FullRankHead", "theory.one_head"),
        ("constructions/test_predictions.py", "theory/test_one_head.py"),
        "Its error at a finite temperature is exact for two points and asymptotic for more.",
    ),
    Statement(
        "A-thm2",
        "Heads of low rank need very many to approximate it: a lower bound on the error.",
        ("theory.head_bounds.mse_floor", "theory.head_bounds.heads_needed"),
        ("theory/test_head_floor.py", "theory/test_never_below.py"),
        "The paper gives no constants; the bound here is computable and was never beaten by a measurement.",
    ),
    Statement(
        "A-thm4",
        "A biased, oscillating target separates full rank from low rank exponentially.",
        ("constructions.oscillating_sum.OscillatingSum", "theory.biased", "theory.targets.biased_target"),
        ("constructions/test_predictions.py", "theory/test_biased.py"),
        "The exact sum of full-rank heads needs a constant head.",
    ),
    Statement(
        "A-rem5",
        "In A-thm4 the size of the value matrices counts as much as the number of heads.",
        ("theory.biased.norm_statement",),
        ("theory/test_biased.py",),
        "Stated without constants, as published; trained models' largest value norm is kept with every run.",
    ),
    Statement(
        "A-thm7",
        "Two layers of rank-one heads approximate the target for two points, by majority vote.",
        ("constructions.votes.MajorityVote", "constructions.linear_regime.LinearRegime", "theory.votes"),
        ("constructions/test_predictions.py", "theory/test_votes.py"),
        "d heads in the linear regime of softmax do better than any vote.",
    ),
    Statement(
        "A-conj8",
        "For long contexts full rank is conjectured to be necessary.",
        ("constructions.votes.PluralityVote", "constructions.vote_quality"),
        ("constructions/test_vote_quality.py",),
        "Evidence only: the vote of independent points never becomes consistent for three points or more.",
    ),
    Statement(
        "A-fig1",
        "Trained: error against rank at equal parameters, one, three and five layers.",
        ("training.stack.Stack", "training.sweep.sweep"),
        ("training/test_stack.py", "training/test_against_modules.py", "figures/test_amsel_trained.py"),
    ),
    Statement(
        "A-fig2",
        "Trained full-rank heads learn minus the identity, many times over.",
        ("training.heads",),
        ("training/test_heads.py", "figures/test_amsel_trained.py"),
    ),
    Statement(
        "A-fig3",
        "Positional codes help only when concatenated, and only with depth.",
        ("training.encoder", "training.cell.Cell"),
        ("training/test_against_modules.py", "figures/test_amsel_trained.py"),
    ),
    Statement(
        "A-fig4",
        "More points make low rank worse.",
        ("training.stack.Stack",),
        ("figures/test_amsel_trained.py",),
    ),
    Statement(
        "A-fig5",
        "The function of the angle whose integral over rank-one heads is the target.",
        ("theory.representing",),
        ("theory/test_representing.py", "figures/test_head_rank_figures.py"),
    ),
    Statement(
        "A-rf",
        "The best combination of H random rank-one heads levels off.",
        ("theory.random_features.best_fit", "theory.random_features.learning_curve", "theory.hardmax"),
        ("theory/test_random_features.py", "theory/test_hardmax_kernels.py"),
    ),
    Statement(
        "A-tab1",
        "Well-known models choose H = d / r.",
        ("models.architectures.survey.survey_configurations",),
        ("models/test_survey_shape.py", "cli/test_survey.py", "figures/test_survey_and_votes.py"),
    ),
    Statement(
        "A-icl",
        "In-context regression: fewer heads of higher rank win at equal parameters.",
        ("tasks",),
        ("tasks/test_tasks.py", "figures/test_amsel_trained.py"),
    ),
    Statement(
        "B-mu",
        "mu, the distance from all tokens being equal, and its companions.",
        ("measures.base.measure", "catalogue.MEASURES"),
        ("measures/test_measures.py",),
    ),
    Statement(
        "B-mask",
        "A mask is a directed graph; its roots and radius are what counts.",
        ("catalogue.MASKS", "masks.graph_facts"),
        ("masks/test_mask_facts.py",),
    ),
    Statement(
        "B-thm1",
        "Without a norm, tokens collapse exponentially under every mask with a root.",
        ("theory.collapse", "dynamics.trajectory.run_layers"),
        ("theory/test_collapse.py", "dynamics/test_exact.py"),
        "Under the complete mask collapse is cubic; elsewhere the tail rate is the second eigenvalue of uniform "
        "attention, far below the bound.",
    ),
    Statement(
        "B-thm2",
        "With a norm and orthogonal values, tokens in a hemisphere still collapse.",
        ("theory.norm_collapse.hemisphere", "theory.norm_collapse.norm_collapse_theorem"),
        ("theory/test_hemisphere.py", "equilibria/test_equilibria_outside.py"),
        "Outside a hemisphere they need not: twisted states on a ring are stable.",
    ),
    Statement(
        "B-thm3",
        "With a norm and suitable values, equilibria of every rank exist side by side.",
        ("catalogue.FAMILIES", "equilibria.examine"),
        ("equilibria/test_equilibria_families.py", "equilibria/test_equilibria_two_token.py"),
        "The two-token example is only marginally stable; a small change makes it strictly so.",
    ),
    Statement(
        "B-fig1",
        "Two tokens in the plane: with a norm they stay apart when one starts in a certain arc.",
        ("equilibria.known.TwoTokens",),
        ("figures/test_wu_fig1.py", "equilibria/test_equilibria_two_token.py"),
    ),
    Statement(
        "B-fig2",
        "mu by depth: pure attention, with norm, full model, under four masks.",
        ("dynamics.trajectory.run_layers", "models.ablation.ablation.ablate"),
        ("figures/test_every_figure.py", "models/test_ablation.py"),
    ),
    Statement(
        "B-fig3",
        "Smaller temperatures slow the collapse.",
        ("dynamics.trajectory.run_layers",),
        ("figures/test_every_figure.py", "figures/test_wu_dynamics.py"),
    ),
    Statement(
        "B-fig4",
        "Pretrained models keep full rank but grow anisotropic.",
        ("models.depth",),
        ("models/test_pretrained_figures.py", "models/test_real_models.py"),
    ),
)


HEAD = """# Statements, and where they are made concrete

Each statement of the two papers in our own words, the code that computes it, the tests that could refute it, and the
figures that show it. `python -m rankfall.figures.statements` writes this page; a test fails when it is out of date.
"""


def claims_page() -> str:
    """The whole page as Markdown."""
    parts = [HEAD]
    for letter, paper in PAPERS.items():
        rows = [_row(one) for one in ALL_STATEMENTS if one.id.startswith(f"{letter}-")]
        parts.append(f"\n## Paper {letter}\n\n{paper}\n")
        parts.append("| statement | says | code | tests | figures |\n|---|---|---|---|---|")
        parts += rows
        parts.append("")
    return "\n".join(parts)


def _row(one: Statement) -> str:
    code = ", ".join(f"`rankfall.{name}`" for name in one.code)
    tests = ", ".join(f"`tests/{name}`" for name in one.tests)
    figures = ", ".join(f"`{name}`" for name in one.figures) or "-"
    says = f"{one.says} *{one.note}*" if one.note else one.says
    return f"| {one.id} | {says} | {code} | {tests} | {figures} |"


if __name__ == "__main__":
    print(claims_page(), end="")
