"""A batch of texts cut into several runs of the model, for memory that does not hold them all at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from rankfall.errors import require_count


def passes(inputs: Mapping[str, Any], texts: int, at_once: int | None) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The number of the first text and the inputs of each run of at most `at_once` texts (default: all together).

    What has one entry for each text is cut; everything else goes into every run.
    """
    if at_once is None or at_once >= texts:
        yield 0, inputs
        return
    require_count("texts at once", at_once)
    for first in range(0, texts, at_once):
        yield (
            first,
            {
                name: value[first : first + at_once]
                if isinstance(value, Tensor) and value.shape[:1] == (texts,)
                else value
                for name, value in inputs.items()
            },
        )
