"""Go through every configuration that the installed `transformers` knows, without network and without noise."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rankfall.audit.survey.shape import HeadShape, read_shape
from rankfall.errors import require

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
            "skipped": len(self.skipped),
            "equal_to_one": sum(not shape.departs for shape in self.models),
            "above_one": sum(ratio > 1 for ratio in ratios),
            "below_one": sum(ratio < 1 for ratio in ratios),
            "grouped": sum(shape.grouped for shape in self.models),
            "latent": sum(shape.latent for shape in self.models),
            "from_parts": sum(bool(shape.part) for shape in self.models),
        }


def survey_configurations(names: Sequence[str] | None = None, advance: Callable[[int], None] | None = None) -> Survey:
    """Instantiate each configuration class with its defaults and read its shape. A-tab1, for hundreds.

    `names` limits the survey to these model types. `advance` is called with 1 after each.
    """
    with _quiet_and_offline():
        import transformers
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING

        known = model_types()
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
        for name in wanted:
            found = _read(name, CONFIG_MAPPING)
            if isinstance(found, HeadShape):
                models.append(found)
            else:
                skipped.append(Skipped(name, found))
            if advance is not None:
                advance(1)
        return Survey(tuple(models), tuple(skipped), f"transformers {transformers.__version__}")


def model_types() -> tuple[str, ...]:
    """Every model type that the installed `transformers` has a configuration for."""
    with _quiet_and_offline():
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

        return tuple(sorted(CONFIG_MAPPING_NAMES))


def _read(name: str, classes: Any) -> HeadShape | str:
    # A class may raise anything on its own defaults, or need a library that is not installed: a row says so instead.
    try:
        configuration = classes[name]()
    except Exception as error:
        reason = " ".join(str(error).split())
        return f"cannot be built from defaults ({type(error).__name__}: {reason[:160]})"
    return read_shape(name, configuration)


@contextlib.contextmanager
def _quiet_and_offline() -> Iterator[None]:
    # The hub library reads this once, when it is first imported.
    before = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from transformers.utils import logging

            level = logging.get_verbosity()
            logging.set_verbosity(logging.CRITICAL)
            try:
                yield
            finally:
                logging.set_verbosity(level)
    finally:
        if before is None:
            del os.environ["HF_HUB_OFFLINE"]
        else:
            os.environ["HF_HUB_OFFLINE"] = before
