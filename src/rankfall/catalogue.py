"""Everything that can be named, one line each: a spelling, and the place of what it names.

A line here is all that a new mask, norm, measure, task, construction, family, engine, figure or verb needs besides
its class: the command line offers it, the tests run what it declares, documentation and reports list it. Nothing is
imported before it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rankfall.registry import Registry

if TYPE_CHECKING:
    from rankfall.constructions.base import Construction
    from rankfall.equilibria.families import EquilibriumFamily
    from rankfall.figures.base import Reproduction
    from rankfall.masks.base import Mask
    from rankfall.measures.base import Measure
    from rankfall.models.heads.weights import WeightLayout
    from rankfall.models.load.named import NamedModel
    from rankfall.norms.base import Norm
    from rankfall.planning.evidence import Evidence
    from rankfall.tasks.base import Task
    from rankfall.theory.random_features.kernel import KeyDesign
    from rankfall.training.engines.base import Engine
    from rankfall.training.kinds import CellKind
    from rankfall.training.recipe import TrainingRecipe

MASKS: Registry[type[Mask]] = Registry(
    "mask",
    {
        "complete": "rankfall.masks.wide:Complete",
        "causal": "rankfall.masks.wide:Causal",
        "window:WIDTH": "rankfall.masks.local:Window",
        "causal-window:WIDTH": "rankfall.masks.local:CausalWindow",
        "dilated:WIDTH:STEP": "rankfall.masks.local:Dilated",
        "global-window:HUBS:WIDTH": "rankfall.masks.local:GlobalWindow",
        "prefix:LENGTH": "rankfall.masks.wide:Prefix",
        "star": "rankfall.masks.stars:Star",
        "out-star": "rankfall.masks.stars:OutStar",
        "in-star": "rankfall.masks.stars:InStar",
        "ring:WIDTH": "rankfall.masks.local:Ring",
        "block-diagonal:SIZE": "rankfall.masks.wide:BlockDiagonal",
        "random:PROBABILITY[:SEED]": "rankfall.masks.wide:RandomSparse",
    },
    example="causal or window:4",
)

NORMS: Registry[type[Norm]] = Registry(
    "norm",
    {
        "none": "rankfall.norms.none:NoNorm",
        "unit": "rankfall.norms.unit:UnitNorm",
        "layer[:EPSILON]": "rankfall.norms.layer:LayerNorm",
        "rms[:EPSILON]": "rankfall.norms.rms:RMSNorm",
        "dyt[:ALPHA]": "rankfall.norms.dyt:DynamicTanh",
        "layer-scaled[:EPSILON][:DEPTH]": "rankfall.norms.layer_scaled:DepthScaledLayerNorm",
    },
    example="unit",
)

MEASURES: Registry[Measure] = Registry(
    "measure",
    {
        "mu": "rankfall.measures.measures:MU",
        "relative_mu": "rankfall.measures.measures:RELATIVE_MU",
        "rank": "rankfall.measures.measures:RANK",
        "effective_rank": "rankfall.measures.measures:EFFECTIVE_RANK",
        "energy_rank": "rankfall.measures.measures:ENERGY_RANK",
        "first_direction_share": "rankfall.measures.measures:FIRST_DIRECTION_SHARE",
        "alpha": "rankfall.measures.measures:ALPHA",
        "stable_rank": "rankfall.measures.measures:STABLE_RANK",
        "participation_ratio": "rankfall.measures.measures:PARTICIPATION_RATIO",
        "mean_abs_cosine": "rankfall.measures.measures:MEAN_ABS_COSINE",
        "min_singular_value": "rankfall.measures.measures:MIN_SINGULAR_VALUE",
        "max_singular_value": "rankfall.measures.measures:MAX_SINGULAR_VALUE",
        "rank_one_residual": "rankfall.measures.measures:RANK_ONE_RESIDUAL",
        "largest_token_share": "rankfall.measures.measures:LARGEST_TOKEN_SHARE",
    },
    example="effective_rank",
)

TASKS: Registry[type[Task]] = Registry(
    "task",
    {
        "farthest": "rankfall.tasks.neighbours:Farthest",
        "nearest": "rankfall.tasks.neighbours:Nearest",
        "orthonormal": "rankfall.tasks.neighbours:Orthonormal",
        "biased[:PIECES]": "rankfall.tasks.biased:Biased",
        "in-context[:DIMENSIONS]": "rankfall.tasks.in_context:InContext",
    },
    example="farthest",
)

CONSTRUCTIONS: Registry[type[Construction]] = Registry(
    "construction",
    {
        "full-rank-head": "rankfall.constructions.full_rank_head:FullRankHead",
        "majority-vote": "rankfall.constructions.votes:MajorityVote",
        "linear-regime": "rankfall.constructions.linear_regime:LinearRegime",
        "oscillating-sum": "rankfall.constructions.oscillating_sum:OscillatingSum",
        "plurality-vote": "rankfall.constructions.votes:PluralityVote",
        "equal-angles": "rankfall.constructions.plane:EqualAngles",
        "quantised-query": "rankfall.constructions.plane:QuantisedQuery",
    },
    example="full-rank-head",
)

FAMILIES: Registry[type[EquilibriumFamily]] = Registry(
    "family",
    {
        "star": "rankfall.equilibria.star:StarFamily",
        "window": "rankfall.equilibria.shift:WindowFamily",
        "past": "rankfall.equilibria.shift:PastFamily",
        "chain": "rankfall.equilibria.chain:ChainFamily",
        "diagonal": "rankfall.equilibria.star:DiagonalFamily",
    },
    example="star; leave it out for the best conditioned",
)

DESIGNS: Registry[KeyDesign] = Registry(
    "design of random heads",
    {
        "independent": "rankfall.theory.random_features.kernel:independent_keys",
        "aligned": "rankfall.theory.random_features.kernel:aligned_keys",
        "signed": "rankfall.theory.random_features.kernel:signed_keys",
        "tilted": "rankfall.theory.random_features.kernel:tilted_keys",
    },
    example="independent, the paper's setting",
)

RECIPES: Registry[TrainingRecipe] = Registry(
    "recipe",
    {
        "published": "rankfall.training.recipe:PUBLISHED",
        "stable": "rankfall.training.recipe:STABLE",
    },
    example="stable",
)

CELL_KINDS: Registry[CellKind] = Registry(
    "kind of cell",
    {
        "points": "rankfall.training.points:POINTS",
        "text": "rankfall.training.text.kind:TEXT",
    },
    example="points, the encoders of paper A",
)

ENGINES: Registry[type[Engine]] = Registry(
    "engine",
    {
        "local": "rankfall.training.engines.local:LocalEngine",
        "ray": "rankfall.training.engines.ray:RayEngine",
    },
    example="local, which trains on this machine",
)

LAYOUTS: Registry[WeightLayout] = Registry(
    "layout of attention weights",
    {
        "llama": "rankfall.models.heads.weights:LLAMA",
        "bart": "rankfall.models.heads.weights:BART",
        "gptj": "rankfall.models.heads.weights:GPTJ",
        "vit": "rankfall.models.heads.weights:VIT",
        "bert": "rankfall.models.heads.weights:BERT",
        "vit, older names": "rankfall.models.heads.weights:VIT_OLDER",
        "albert": "rankfall.models.heads.weights:ALBERT",
        "mpnet": "rankfall.models.heads.weights:MPNET",
        "deberta-v2": "rankfall.models.heads.weights:DEBERTA_V2",
        "distilbert": "rankfall.models.heads.weights:DISTILBERT",
        "t5": "rankfall.models.heads.weights:T5",
        "phi3": "rankfall.models.heads.weights:PHI3",
        "modernbert": "rankfall.models.heads.weights:MODERNBERT",
        "mpt": "rankfall.models.heads.weights:MPT",
        "gpt2": "rankfall.models.heads.weights:GPT2",
        "gpt_bigcode, keys for every head": "rankfall.models.heads.weights:GPT_BIGCODE_PER_HEAD",
        "gpt_bigcode": "rankfall.models.heads.weights:GPT_BIGCODE",
        "gpt_neox": "rankfall.models.heads.weights:GPT_NEOX",
        "bloom": "rankfall.models.heads.weights:BLOOM",
        "falcon": "rankfall.models.heads.weights:FALCON",
    },
    example="llama",
)

EVIDENCE: Registry[Evidence] = Registry(
    "source of evidence",
    {
        "trained_error": "rankfall.planning.evidence:FARTHEST",
        "text_excess": "rankfall.planning.text_evidence:TEXT",
    },
    example="trained_error",
)

NAMED_MODELS: Registry[NamedModel] = Registry(
    "model",
    {
        "minilm": "rankfall.models.load.named:MINILM",
        "smollm2": "rankfall.models.load.named:SMOLLM2",
        "gemma3-270m": "rankfall.models.load.named:GEMMA3",
        "qwen2.5-coder-0.5b": "rankfall.models.load.named:QWEN_CODER",
        "all-mpnet-base-v2": "rankfall.models.load.named:MPNET",
        "whisper-tiny.en": "rankfall.models.load.named:WHISPER",
    },
    example="minilm",
)

FIGURES: Registry[Reproduction] = Registry(
    "figure",
    {
        "amsel/table1": "rankfall.figures.amsel_table1:REPRODUCTION",
        "amsel/fig1": "rankfall.figures.amsel_fig1:REPRODUCTION",
        "amsel/fig2": "rankfall.figures.amsel_fig2:REPRODUCTION",
        "amsel/fig3": "rankfall.figures.amsel_fig3:REPRODUCTION",
        "amsel/fig4": "rankfall.figures.amsel_fig4:REPRODUCTION",
        "amsel/fig5": "rankfall.figures.amsel_fig5:REPRODUCTION",
        "amsel/random-features": "rankfall.figures.amsel_random_features:REPRODUCTION",
        "amsel/in-context": "rankfall.figures.amsel_in_context:REPRODUCTION",
        "wu/fig1": "rankfall.figures.wu_fig1:REPRODUCTION",
        "wu/fig2": "rankfall.figures.wu_fig2:REPRODUCTION",
        "wu/fig2-pretrained": "rankfall.figures.wu_fig2_pretrained:REPRODUCTION",
        "wu/fig3": "rankfall.figures.wu_fig3:REPRODUCTION",
        "wu/fig4": "rankfall.figures.wu_fig4:REPRODUCTION",
        "rankfall/equilibria": "rankfall.figures.rankfall_equilibria:REPRODUCTION",
        "rankfall/depth": "rankfall.figures.trained_depth:REPRODUCTION",
        "rankfall/text-rank": "rankfall.figures.text_rank:REPRODUCTION",
        "rankfall/norms": "rankfall.figures.norms_and_rank:REPRODUCTION",
        "rankfall/rate-vs-radius": "rankfall.figures.rate_vs_radius:REPRODUCTION",
        "rankfall/theory-gap": "rankfall.figures.theory_gap:REPRODUCTION",
        "rankfall/vote-quality": "rankfall.figures.vote_quality:REPRODUCTION",
    },
    example="amsel/fig1",
)

VERBS: Registry[Callable[..., None]] = Registry(
    "verb",
    {
        "audit": "rankfall.cli.audit:audit",
        "compare": "rankfall.cli.compare:compare",
        "coverage": "rankfall.cli.coverage:coverage",
        "simulate": "rankfall.cli.simulate:simulate",
        "equilibrium": "rankfall.cli.equilibrium:equilibrium",
        "bounds": "rankfall.cli.bounds:bounds",
        "plan": "rankfall.cli.plan:plan",
        "survey": "rankfall.cli.survey:survey",
        "sweep": "rankfall.cli.sweep:sweep",
        "runs": "rankfall.cli.runs:runs",
        "reproduce": "rankfall.cli.reproduce:reproduce",
        "explore": "rankfall.cli.explore:explore",
    },
    example="audit",
)
