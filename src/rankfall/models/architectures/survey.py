"""A-tab1 for every architecture that ships with `transformers`: width, heads, head size, and where H = d/r fails."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rankfall.errors import require
from rankfall.models.architectures import configuration as aliases
from rankfall.models.architectures.configuration import head_size, is_stages, number, value
from rankfall.models.load.confinement import offline
from rankfall.progress import Progress, silent
from rankfall.theory.head_bounds import structural_rank


@dataclass(frozen=True)
class HeadShape:
    """One row of A-tab1: the paper's d, H and r, with what newer models add to them.

    `derived`: the configuration names no head size, and width // heads stands for it.
    `varies`: layers differ, and these are the numbers of most of them. `stage`: a pyramid of stages with different
    sizes, and these are those of its last one. `part`: the sub-configuration that was read, empty for the whole.
    `kv_latent`, `q_latent`: sizes of the vectors from which keys and values, or queries, are read (0: none);
    `rope_dims`: the part of a key that does not come from it.
    """

    model_type: str
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: int | None
    derived: bool = False
    kv_latent: int = 0
    q_latent: int = 0
    rope_dims: int = 0
    varies: bool = False
    stage: bool = False
    part: str = ""

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        """Width, heads, key/value heads and head size: many configuration classes share them."""
        return self.width, self.heads, self.kv_heads, self.head_dim

    @property
    def latent(self) -> bool:
        """Keys and values are read from a latent vector."""
        return self.kv_latent > 0

    @property
    def structural_rank(self) -> int:
        """The paper's r: the largest rank that a head can have, its size unless a latent or the width is less."""
        latents = {"kv_latent": self.kv_latent, "q_latent": self.q_latent, "rope_dims": self.rope_dims}
        return structural_rank(self.head_dim, self.width, **latents)

    @property
    def heads_times_rank_over_width(self) -> float:
        """H r / d: 1 in every model of the paper's table."""
        return self.heads * self.structural_rank / self.width

    @property
    def rank_over_width(self) -> float:
        """r / d: the share of the width that one head can compare."""
        return self.structural_rank / self.width

    @property
    def grouped(self) -> bool:
        """Several query heads share one key/value head."""
        return self.kv_heads < self.heads

    @property
    def departs(self) -> bool:
        """H r = d does not hold."""
        return self.heads * self.structural_rank != self.width

    def record(self) -> dict[str, Any]:
        """The row as it is printed."""
        return {
            "model_type": self.model_type,
            "width": self.width,
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "structural_rank": self.structural_rank,
            "layers": self.layers,
            "heads_times_rank_over_width": self.heads_times_rank_over_width,
            "rank_over_width": self.rank_over_width,
            "grouped": self.grouped,
            "derived": self.derived,
            "latent": self.latent,
            "kv_latent": self.kv_latent,
            "q_latent": self.q_latent,
            "rope_dims": self.rope_dims,
            "varies": self.varies,
            "stage": self.stage,
            "part": self.part,
        }


def read_shape(model_type: str, configuration: object) -> HeadShape | str:
    """The shape, of the configuration itself or of the first of its parts that has one; else why there is none."""
    own = _own_shape(model_type, configuration)
    if isinstance(own, HeadShape):
        return own
    reasons = []
    for name, part in _parts(configuration):
        found = read_shape(model_type, part)
        if isinstance(found, HeadShape):
            deeper = f"{name}.{found.part}" if found.part else name
            return replace(found, part=deeper)
        reasons.append(f"{name}: {found}")
    return "; ".join([own, *reasons])


def _own_shape(model_type: str, configuration: object) -> HeadShape | str:
    width = number(configuration, (*aliases.ATTENTION_WIDTH, *aliases.WIDTH))
    heads = number(configuration, aliases.HEADS)
    if heads is None:
        return "names no attention heads"
    if width is None:
        return "names no width"
    recurrent = any(value(configuration, name) for name in aliases.RECURRENCE)
    if recurrent and number(configuration, aliases.ATTENTION_ONLY_HEADS) is None:
        return "its heads belong to a recurrence, not to attention"
    head_dim = head_size(configuration)
    if (divided := number(configuration, aliases.HEADS_DIVIDED_BY)) is not None:
        heads = max(heads // divided, 1)
        head_dim = width // heads // 2
    if head_dim is None and heads > width:
        return f"names no head size, and {heads} heads share a width of {width}"
    one_for_all = any(value(configuration, name) is True for name in aliases.MULTI_QUERY_SWITCHES)
    kv_heads = 1 if one_for_all else number(configuration, aliases.KEY_VALUE_HEADS) or heads
    kv_latent = number(configuration, aliases.LATENT_RANK) or 0
    sizes = [value(configuration, name) for name in (*aliases.WIDTH, *aliases.HEADS)]
    return HeadShape(
        model_type=model_type,
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        # Rounded down where heads do not divide the width: so do the library's own modules.
        head_dim=head_dim or width // heads,
        layers=_layers(configuration),
        derived=head_dim is None,
        kv_latent=kv_latent,
        q_latent=number(configuration, aliases.QUERY_LATENT) or 0,
        rope_dims=(number(configuration, aliases.ROTARY_PART) or 0) if kv_latent else 0,
        varies=any(_varies(configuration, name) for name in (*aliases.HEADS, *aliases.HEAD_SIZE))
        or any(is_stages(value(configuration, name)) for name in aliases.PER_LAYER),
        stage=any(is_stages(size) and len(set(size)) > 1 for size in sizes),
    )


def _layers(configuration: object) -> int | None:
    for name in aliases.STAGE_LAYERS:
        stages = value(configuration, name)
        if is_stages(stages):
            return sum(stages)
    return number(configuration, aliases.LAYERS)


def _parts(configuration: object) -> Iterator[tuple[str, object]]:
    declared = tuple(getattr(configuration, "sub_configs", None) or ())
    ordered = dict.fromkeys((*(name for name in aliases.PARTS if name in declared), *declared))
    for name in ordered:
        part = value(configuration, name)
        if hasattr(part, "to_dict"):
            yield name, part


def _varies(configuration: object, name: str) -> bool:
    try:
        getattr(configuration, name, None)
    except Exception:
        return True
    return False


CAVEAT = "These are the defaults of configuration classes, not checkpoints: a checkpoint sets its own numbers."


@dataclass(frozen=True)
class Skipped:
    """A configuration without a row, and why."""

    model_type: str
    reason: str


@dataclass(frozen=True)
class Survey:
    """All rows, and all that gave none."""

    models: tuple[HeadShape, ...]
    skipped: tuple[Skipped, ...]
    library: str

    def summary(self) -> dict[str, Any]:
        """How many there are of each kind."""
        ratios = [shape.heads_times_rank_over_width for shape in self.models]
        return {
            "configurations": len(self.models) + len(self.skipped),
            "with_heads": len(self.models),
            "distinct_shapes": len({shape.numbers for shape in self.models}),
            "distinct_equal_to_one": len({shape.numbers for shape in self.models if not shape.departs}),
            "skipped": len(self.skipped),
            "equal_to_one": sum(not shape.departs for shape in self.models),
            "above_one": sum(ratio > 1 for ratio in ratios),
            "below_one": sum(ratio < 1 for ratio in ratios),
            "grouped": sum(shape.grouped for shape in self.models),
            "latent": sum(shape.latent for shape in self.models),
            "narrow_latents": sum(shape.structural_rank < min(shape.head_dim, shape.width) for shape in self.models),
            "from_parts": sum(bool(shape.part) for shape in self.models),
        }


def survey_configurations(names: Sequence[str] | None = None, progress: Progress = silent) -> Survey:
    """Instantiate each configuration class with its defaults and read its shape. A-tab1, for hundreds.

    `names` limits the survey to these model types. `progress` is told after each.
    """
    # Defaults of some classes name a backbone on the hub, whose configuration they would fetch.
    with offline(), _quiet():
        import transformers
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

        known = tuple(sorted(CONFIG_MAPPING_NAMES))
        wanted = known if names is None else tuple(names)
        unknown = [name for name in wanted if name not in known]
        require(
            not unknown,
            required="model types that the installed transformers knows",
            got=", ".join(unknown),
            remedy="run `rankfall survey --json` for the list",
        )
        models: list[HeadShape] = []
        skipped: list[Skipped] = []
        for done, name in enumerate(wanted, start=1):
            found = _read(name, CONFIG_MAPPING)
            if isinstance(found, HeadShape):
                models.append(found)
            else:
                skipped.append(Skipped(name, found))
            progress(name, done / len(wanted))
        return Survey(tuple(models), tuple(skipped), f"transformers {transformers.__version__}")


def _read(name: str, classes: Any) -> HeadShape | str:
    # A class may raise anything on its own defaults, or need a library that is not installed: a row says so instead.
    try:
        configuration = classes[name]()
    except Exception as error:
        reason = " ".join(str(error).split())
        return f"cannot be built from defaults ({type(error).__name__}: {reason[:160]})"
    return read_shape(name, configuration)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers.utils import logging

        level = logging.get_verbosity()
        logging.set_verbosity(logging.CRITICAL)
        try:
            yield
        finally:
            logging.set_verbosity(level)
