"""Whether the heads are the bottleneck: what each needs, what the model loses when all are cut, where they look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from torch import nn

from rankfall.errors import reason_of
from rankfall.models.depth.rows import DepthRow
from rankfall.models.heads.cut_curve import CutCurve, cut_curve
from rankfall.models.heads.needed import DIVERGENCE, HeadNeed, head_needs, on_random_twin
from rankfall.models.heads.spectra import HeadSpectrum
from rankfall.models.heads.subspaces import HeadSpaces, SpaceOverlap
from rankfall.models.inputs.given import Reading
from rankfall.models.load.folder import LoadedModel
from rankfall.models.recording.blocks import BlockStack
from rankfall.models.recording.layers import as_in_tokens, layer_number
from rankfall.progress import Progress, part, silent


@final
@dataclass(frozen=True)
class HeadQuestions:
    """What of the heads is asked: `needs` runs the model a few times, `cut` as often as there are points on curves.
    `divergence` is how far a head's attention may be from its own, in nats a row."""

    needs: bool = False
    cut: bool = False
    divergence: float = DIVERGENCE

    @property
    def any(self) -> bool:
        """Whether anything is asked: a cut needs the directions that the needs are found with."""
        return self.needs or self.cut


@final
@dataclass(frozen=True)
class HeadStudy:
    """The needs of all heads and of those of the random twin, the loss with cut heads, overlaps and spectra."""

    head_needs: tuple[HeadNeed, ...] = ()
    random_head_needs: tuple[HeadNeed, ...] = ()
    head_cut: CutCurve | None = None
    head_overlaps: tuple[SpaceOverlap, ...] = ()
    head_spectra: tuple[HeadSpectrum, ...] = ()


def study_heads(
    loaded: LoadedModel,
    given: Reading,
    asked: HeadQuestions,
    *,
    rows: Sequence[DepthRow],
    stack: BlockStack,
    stacks: Sequence[BlockStack] = (),
    spaces: HeadSpaces,
    controls: bool = True,
    seed: int = 0,
    missing: dict[str, str],
    progress: Progress = silent,
) -> HeadStudy:
    """Everything that is asked; what fails is noted in `missing`, by name, with its reason."""
    study = HeadStudy(
        head_overlaps=tuple(
            replace(
                one,
                layer=layer_number(one.module, rows, stacks, one.layer),
                other_layer=layer_number(one.other_module, rows, stacks, one.other_layer),
            )
            for one in spaces.overlaps()
        ),
        head_spectra=as_in_tokens(spaces.spectra, rows, stacks),
    )
    progress("what heads need", 0.0)
    try:
        found = head_needs(loaded.network, given.calls, given.real, limit=asked.divergence)
    except Exception as error:
        missing["head needs"] = reason_of(error)
        return study
    if found.missing:
        missing["head needs"] = "; ".join(f"{name}: {why}" for name, why in list(found.missing.items())[:1])
    study = replace(study, head_needs=as_in_tokens(found.records, rows, stacks))
    if controls:
        progress("what random heads need", 0.05 if asked.cut else 0.5)

        def on_twin(twin: nn.Module) -> Any:
            return head_needs(twin, given.calls, given.real, limit=asked.divergence).records

        try:
            study = replace(
                study, random_head_needs=as_in_tokens(on_random_twin(loaded.network, seed, on_twin), rows, stacks)
            )
        except Exception as error:
            missing["control of what heads need"] = reason_of(error)
    if asked.cut:
        try:
            curve = cut_curve(
                loaded,
                given.calls,
                found.truncations,
                found.ranks,
                batch=given.batch,
                real=given.real,
                stack=stack,
                progress=part(progress, 0.1, 1.0, "cutting"),
            )
        except Exception as error:
            missing["head cut"] = reason_of(error)
        else:
            study = replace(study, head_cut=_with_layers(curve, rows, stacks))
    return study


def _with_layers(curve: CutCurve, rows: Sequence[DepthRow], stacks: Sequence[BlockStack]) -> CutCurve:
    alone = iter(as_in_tokens(curve.alone, rows, stacks))
    return replace(curve, points=tuple(one if one.layer is None else next(alone) for one in curve.points))


def by_layer(needs: Sequence[HeadNeed]) -> list[Mapping[str, Any]]:
    """The needed ranks of each layer's heads, as `--json` prints those of the random twin: one row a layer."""
    layers: dict[tuple[int, str], list[HeadNeed]] = {}
    for one in needs:
        layers.setdefault((one.layer, one.module), []).append(one)
    return [
        {
            "layer": layer,
            "module": module,
            "needed_rank": [one.needed_rank for one in heads],
            "divergence_without": [one.divergence_without for one in heads],
        }
        for (layer, module), heads in layers.items()
    ]
