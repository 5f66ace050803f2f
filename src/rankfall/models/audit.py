"""Audit a model: where it loses rank, what holds it up, and whether its heads are the bottleneck."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankfall.errors import RequestError, require, require_count, require_number, require_seed
from rankfall.models import configuration as aliases
from rankfall.models.ablation import QUICK, Ablation, ablate
from rankfall.models.controls import DRAWS, Control, run_controls
from rankfall.models.depth.measure import measure_depth
from rankfall.models.depth.rows import DepthRow
from rankfall.models.heads.ranks import HeadRecord, head_ranks
from rankfall.models.interface import runs_as_is
from rankfall.models.load.folder import LoadedModel
from rankfall.models.load.guards import LIMITS
from rankfall.models.load.named import DEFAULT_NAME
from rankfall.models.load.open import open_model
from rankfall.models.loss import last_hidden, text_loss
from rankfall.models.masks import MaskObserver, ObservedMask, observe_masks
from rankfall.models.recorder import Coverage, recorded
from rankfall.models.result import AuditFindings, ModelFacts, TextFacts
from rankfall.models.texts import Batch, encode, from_ids, shipped_text
from rankfall.models.verdict import heads_reason, judge, layer_rate, parts_reason
from rankfall.progress import Progress, part, silent
from rankfall.provenance import provenance

DEFAULT_TOKENS = 128
MOST_LOAD_SECONDS = 1e7
SHIPPED_PASSAGES = 4


def audit(
    model: str | Path | LoadedModel | nn.Module = DEFAULT_NAME,
    texts: Sequence[str] | None = None,
    *,
    tokens: int = DEFAULT_TOKENS,
    passages: int | None = None,
    tokenizer: Any | None = None,
    inputs: Mapping[str, Any] | Tensor | None = None,
    layers: Collection[int] | None = None,
    stack: str | None = None,
    inside: bool = False,
    heads: bool = True,
    controls: bool = True,
    draws: int = DRAWS,
    ablation: bool = True,
    offset: int = 0,
    dtype: str = "float32",
    device: str = "cpu",
    allow_download: bool = False,
    load_seconds: float = LIMITS.seconds,
    revision: str | None = None,
    adapter: str | Path | None = None,
    seed: int = 0,
    progress: Progress = silent,
    command: str | None = None,
) -> AuditFindings:
    """Measure token rank by depth, masks, head ranks, controls and ablations of a model, and judge.

    `model` is a short name, a folder, a GGUF file, a hub id, or a module that is loaded already; that one needs
    `tokenizer`, or `inputs`: token ids (b, n), or the keyword arguments of its forward pass. Without `texts` the text
    that ships with the package is read, in several passages. `layers` limits what is measured; the embeddings and the
    last layer are always there, because the verdict is about them. `draws` is how often each control is drawn. What
    cannot be done for this model is named in `missing` with its reason; token rank by depth is always there.
    """
    require_seed(seed, "seed")
    require_number("load_seconds", load_seconds, above=0, most=MOST_LOAD_SECONDS)
    require_count("draws", draws)
    if passages is not None:
        require_count("passages", passages)
    progress("opening the model", 0.0)
    options = {"dtype": dtype, "device": device, "allow_download": allow_download, "load_seconds": load_seconds}
    options |= {"revision": revision, "adapter": adapter}
    loaded = _loaded(model, tokenizer, options)
    network = loaded.network
    missing: dict[str, str] = {}
    with evaluating(network):
        batch, given, real, names = _inputs(loaded, texts, inputs, tokens, passages)
        progress("measuring tokens at every block", 0.1)
        wanted = None if layers is None else {0, *layers}
        asked = {"layers": wanted, "inside": inside, "stack": stack, "seed": seed}
        with last_hidden(network) as hidden, running(loaded.name):
            depth, seen, coverage = _depth(network, given, real, names, asked, missing)
        loss = text_loss(loaded, batch, hidden)
        hidden.tokens = None
        if layers is not None:
            _require_layers(layers, depth[-1].layer)
        found_heads: tuple[HeadRecord, ...] = ()
        if heads:
            progress("probing the heads", 0.4)
            with _noted(missing, "heads"):
                found_heads = head_ranks(network, offset=offset, inputs=None if batch is not None else given)
        compared: tuple[Control, ...] = ()
        if controls:
            progress("running the controls", 0.55)
            compared = _controls(network, batch, depth[-1].layer, draws, seed, missing)
        parts = Ablation(())
        if ablation:
            progress("taking the blocks apart", 0.75)
            parts = _ablation(network, given, missing, progress)
        progress("judging", 0.98)
    boundaries = [row for row in depth if row.part == "boundary"]
    more = [heads_reason(found_heads), parts_reason([row.record() for row in parts.rows])]
    return AuditFindings(
        model=_facts(loaded, boundaries[-1].layer, () if loss.warning is None else (loss.warning,)),
        text=TextFacts(
            len(real),
            () if batch is None else tuple(batch.lengths),
            any(one is not None for one in real),
            loss.value,
            loss.reason,
        ),
        depth=tuple(depth),
        masks=tuple(seen),
        coverage=coverage,
        heads=found_heads,
        controls=compared,
        ablation=parts.rows,
        ablation_check=parts.check,
        verdict=judge(
            loaded.name, depth, masks=seen, controls=compared, more=[one for one in more if one is not None]
        ),
        missing=missing,
        provenance=provenance(command),
        measured_rate=layer_rate(boundaries),
    )


@contextlib.contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Inside, every module is in evaluation mode; afterwards each is as it was, whatever happened."""
    before = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


@contextlib.contextmanager
def running(name: str) -> Iterator[None]:
    """A model that fails inside its forward pass is refused in one line; our own refusals pass through."""
    try:
        yield
    except RequestError:
        raise
    except Exception as error:
        raise RequestError(
            required=f"{name} to run on these inputs",
            got=reason_of(error),
            remedy="check that weights, tokenizer and inputs belong together, or pass inputs= from Python",
        ) from error


def _require_layers(layers: Collection[int], last: int) -> None:
    """The layers asked for must be there; what was measured has the embeddings and the last layer besides."""
    beyond = sorted(set(layers) - set(range(last + 1)))
    require(
        not beyond and len(layers) > 0,
        required=f"layers from 0, the embeddings, to {last}",
        got=", ".join(str(layer) for layer in beyond) or "none",
        remedy="leave them out to measure every layer",
    )


def _loaded(model: Any, tokenizer: Any, options: Mapping[str, Any]) -> LoadedModel:
    if isinstance(model, LoadedModel):
        return model
    if isinstance(model, nn.Module):
        body = getattr(model, "base_model", model)
        whole = None if body is model else model
        return LoadedModel(body, tokenizer, type(model).__name__, "a module in memory", whole=whole)
    return open_model(model, **options)


def _inputs(
    loaded: LoadedModel, texts: Sequence[str] | None, inputs: Any, tokens: int, passages: int | None
) -> tuple[Batch | None, dict[str, Any], list[Tensor | None], list[list[str]]]:
    """The batch if there are token ids, the forward pass's arguments, which positions are real, tokens' names."""
    if isinstance(inputs, Mapping) and "input_ids" not in inputs:
        size = next(value.shape[0] for value in inputs.values() if isinstance(value, Tensor))
        return None, dict(inputs), [None] * size, [[] for _ in range(size)]
    if inputs is not None:
        batch = _batch_of(inputs, loaded.tokenizer)
        return batch, {**batch.inputs(loaded.network), **_others(inputs)}, batch.kept(), list(batch.names)
    require(
        loaded.tokenizer is not None,
        required="a tokenizer to read texts with",
        got=f"{loaded.name} without one",
        remedy="save it into the model's folder, or use --weights-only; in Python pass tokenizer= or inputs=",
    )
    if passages is None:
        passages = SHIPPED_PASSAGES if texts is None else 1
    batch = encode(loaded.tokenizer, [shipped_text()] if texts is None else texts, tokens=tokens, passages=passages)
    _require_positions(loaded.network, batch)
    _require_known_tokens(loaded.network, batch)
    return batch, batch.inputs(loaded.network), batch.kept(), list(batch.names)


def _batch_of(inputs: Any, tokenizer: Any) -> Batch:
    ids = inputs["input_ids"] if isinstance(inputs, Mapping) else inputs
    mask = inputs.get("attention_mask") if isinstance(inputs, Mapping) else None
    kept = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
    return from_ids([row[keep].tolist() for row, keep in zip(ids, kept, strict=True)], tokenizer)


def _others(inputs: Any) -> dict[str, Any]:
    known = ("input_ids", "attention_mask")
    return {key: value for key, value in inputs.items() if key not in known} if isinstance(inputs, Mapping) else {}


def _require_positions(network: nn.Module, batch: Batch) -> None:
    most = aliases.number(getattr(network, "config", None), aliases.POSITIONS)
    longest = batch.ids.shape[1]
    require(
        most is None or longest <= most,
        required=f"at most {most} tokens, the positions that this model has",
        got=longest,
        remedy=f"use --tokens {most}",
    )


def _require_known_tokens(network: Any, batch: Batch) -> None:
    """A tokenizer with more tokens than the model has embeddings for belongs to another model."""
    table = network.get_input_embeddings() if hasattr(network, "get_input_embeddings") else None
    rows = getattr(table, "num_embeddings", None)
    largest = int(batch.ids.max())
    require(
        rows is None or largest < rows,
        required=f"token ids below {rows:,}, the embeddings that this model has" if rows else "token ids",
        got=largest,
        remedy="the tokenizer belongs to another model; put the right one into the folder",
    )


def _depth(
    network: nn.Module,
    given: dict[str, Any],
    real: list[Tensor | None],
    names: list[list[str]],
    options: Mapping[str, Any],
    missing: dict[str, str],
) -> tuple[list[DepthRow], list[ObservedMask], Coverage | None]:
    """Tokens by depth and the masks of attention, in one pass; without the masks, if those cannot be had."""
    depth: list[DepthRow] | None = None
    seen: list[ObservedMask] = []
    coverage: Coverage | None = None
    with _noted(missing, "mask"):
        if runs_as_is(network):
            observer = MaskObserver(real)
            with recorded(network, observer.see, own=True) as recorder:
                depth = measure_depth(network, given, real=real, names=names, **options)
            seen, coverage = observer.masks(), recorder.coverage()
        else:
            # Attention kernels that do not show their mask: eager attention does, in a pass of its own.
            seen, coverage = observe_masks(network, given, real)
        if not coverage.complete:
            missing["attention"] = coverage.reason
    if depth is None:
        depth = measure_depth(network, given, real=real, names=names, **options)
    return depth, seen, coverage


def _controls(
    network: nn.Module, batch: Batch | None, layers: int, draws: int, seed: int, missing: dict[str, str]
) -> tuple[Control, ...]:
    if batch is None:
        missing["controls"] = "the inputs are not token ids, so there is nothing to shuffle or draw"
        return ()
    made: tuple[Control, ...] = ()
    with _noted(missing, "controls"):
        made = run_controls(network, batch, layers=layers, seed=seed, draws=draws)
    missing |= {f"control {one.name}": one.reason for one in made if one.reason is not None}
    return made


def _ablation(network: nn.Module, given: dict[str, Any], missing: dict[str, str], progress: Progress) -> Ablation:
    found = Ablation(())
    with _noted(missing, "ablation"):
        found = ablate(network, given, measures=QUICK, progress=part(progress, 0.75, 0.95, "taking apart"))
    if found.refusal is not None:
        missing["ablation"] = found.refusal
    return found


@contextlib.contextmanager
def _noted(missing: dict[str, str], name: str) -> Iterator[None]:
    """A part of an audit that fails is noted as missing, with its reason; the audit goes on."""
    try:
        yield
    except Exception as error:
        missing[name] = reason_of(error)


def reason_of(error: Exception) -> str:
    """An error as one line: our own as they are, others with their kind."""
    if isinstance(error, RequestError):
        return str(error)
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _facts(loaded: LoadedModel, layers: int, warnings: tuple[str, ...]) -> ModelFacts:
    config = getattr(loaded.network, "config", None)
    width = aliases.number(config, aliases.WIDTH) or 0
    kind = str(getattr(config, "model_type", type(loaded.network).__name__))
    notes = (*loaded.notes, *warnings)
    return ModelFacts(loaded.name, loaded.source, kind, loaded.parameters, layers, width, notes)
