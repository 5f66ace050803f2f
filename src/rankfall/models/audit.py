"""Audit a model: are tokens aligned, are distinctions lost, do a few tokens dominate; what holds it up; its heads."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from rankfall.errors import RequestError, reason_of, require, require_count, require_number, require_seed
from rankfall.models.ablation.ablation import Ablation
from rankfall.models.architectures import configuration as aliases
from rankfall.models.attention.heads import HeadAttention
from rankfall.models.attention.masks import MaskObserver, ObservedMask, observe_masks
from rankfall.models.attention.observer import AttentionObserver
from rankfall.models.attention.summary import attention_reasons
from rankfall.models.controls.controls import DRAWS, MOST_DRAWS, Control
from rankfall.models.depth.measure import measure_depth
from rankfall.models.depth.pooled import Pool
from rankfall.models.depth.rows import DepthRow
from rankfall.models.heads.key_values import KeyValueRecord, KeyValues
from rankfall.models.heads.maps import HeadMaps
from rankfall.models.heads.needed import DIVERGENCE
from rankfall.models.heads.random import random_head_ranks
from rankfall.models.heads.ranks import ProbedHeads, probe_heads
from rankfall.models.heads.record import HeadRecord
from rankfall.models.heads.seen import Seen, SeenWatch, tokens_seen
from rankfall.models.heads.study import HeadQuestions, HeadStudy, study_heads
from rankfall.models.heads.subspaces import HeadSpaces
from rankfall.models.inputs.calling import as_tensors, ids_argument, unwrapped
from rankfall.models.inputs.given import Reading, inputs_remedy, of_library, read_by_library, read_by_module
from rankfall.models.inputs.single_texts import single_texts
from rankfall.models.inputs.texts import PASSAGES_IN_ALL, USUAL_TOKENS, Batch, encode, shipped_text
from rankfall.models.load.folder import LoadedModel
from rankfall.models.load.guards import LIMITS
from rankfall.models.load.named import DEFAULT_NAME
from rankfall.models.load.open import open_model
from rankfall.models.loss import last_hidden, text_loss
from rankfall.models.recording.blocks import BlockStack, body_of, choose_stack, find_stacks, stacks_that_run
from rankfall.models.recording.events import Coverage
from rankfall.models.recording.interface import ALONE, runs_as_is
from rankfall.models.recording.layers import as_in_tokens
from rankfall.models.recording.recorder import recorded
from rankfall.models.result import AuditFindings, ModelFacts, TextFacts
from rankfall.models.stacks import (
    StackFindings,
    ablation_of,
    controls_of,
    joined,
    labels,
    masks_without,
    noted,
    plan_of,
    study_stack,
)
from rankfall.models.verdict.asked import too_little_text
from rankfall.models.verdict.head_reasons import bound_reason, cut_reason, heads_reason, needs_reason
from rankfall.models.verdict.key_value_reason import key_value_reason
from rankfall.models.verdict.parts_reason import parts_reason
from rankfall.models.verdict.reasons import Reason, layer_rate
from rankfall.models.verdict.verdict import judge
from rankfall.progress import Progress, part, silent, widened
from rankfall.provenance import provenance

DEFAULT_TOKENS = USUAL_TOKENS
MOST_LOAD_SECONDS = 1e7
IN_MEMORY = "a module in memory"


def audit(
    model: str | Path | LoadedModel | nn.Module = DEFAULT_NAME,
    texts: Sequence[str] | None = None,
    *,
    tokens: int = DEFAULT_TOKENS,
    passages: int | None = None,
    tokenizer: Any | None = None,
    inputs: Mapping[str, Any] | Tensor | Sequence[Any] | None = None,
    layers: Collection[int] | None = None,
    stack: str | None = None,
    inside: bool = False,
    heads: bool = True,
    attention: bool = True,
    head_needs: bool = False,
    head_cut: bool = False,
    head_divergence: float = DIVERGENCE,
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
    """Measure token rank by depth, masks, attention, head ranks, controls and ablations of a model, and judge.

    `model` is a short name, a folder, a GGUF file, a hub id, or any module; that one needs `tokenizer`, or `inputs`:
    token ids (n,) or (b, n), vectors (b, n, d), a list of texts of unequal length, or the keyword arguments of its
    forward pass. Without `texts` the text
    that ships with the package is read, in several passages. `layers` limits what is measured; the embeddings and the
    last layer are always there, because the verdict is about them. `draws` is how often each control is drawn. What
    cannot be done for this model is named in `missing` with its reason; token rank by depth is always there.
    Audits of one process run one after the other: watching a model changes what is shared by all.
    """
    require_seed(seed, "seed")
    require_number("load_seconds", load_seconds, above=0, most=MOST_LOAD_SECONDS)
    require_count("draws", draws, most=MOST_DRAWS)
    asked_of_heads = HeadQuestions(head_needs, head_cut, require_number("head_divergence", head_divergence, above=0))
    if passages is not None:
        require_count("passages", passages)
    if head_cut:
        progress = widened(progress, 0.65, 0.75, 0.08)
    progress("opening the model", 0.0)
    options = {"dtype": dtype, "device": device, "allow_download": allow_download, "load_seconds": load_seconds}
    options |= {"revision": revision, "adapter": adapter}
    loaded = _loaded(model, tokenizer, options)
    network = loaded.network
    missing: dict[str, str] = {}
    with ALONE, evaluating(network):
        given = _reading(loaded, texts, inputs, tokens, passages)
        progress("measuring tokens at every block", 0.1)
        first = given.calls[0]
        wanted = None if layers is None else {0, *layers}
        pool = Pool(given.real)
        asked = {"layers": wanted, "inside": inside, "seed": seed, "also": pool}
        with last_hidden(network) as hidden, running(loaded.name, inputs_remedy(network, first)):
            chosen, others = _stacks(network, first, stack)
            stacks = find_stacks(network)
            watched = AttentionObserver(given.real, given.names, len(given.calls), seed) if attention else None
            depth, seen, coverage = _depth(network, given, {**asked, "stack": chosen}, missing, watched)
        loss = text_loss(loaded, given.batch, hidden)
        hidden.tokens = None
        seen = list(as_in_tokens(seen, depth, stacks))
        attended = as_in_tokens(_attention(watched, missing), depth, stacks)
        if layers is not None:
            _require_layers(layers, depth[-1].layer)
        parts, watch = Ablation(()), SeenWatch(given.real)
        if ablation:
            progress("taking the blocks apart", 0.4)
            told = part(progress, 0.4, 0.6, "taking apart")
            parts = ablation_of(network, given, chosen, missing, watch, told)
        found_heads: tuple[HeadRecord, ...] = ()
        by_chance: tuple[HeadRecord, ...] = ()
        key_values: tuple[KeyValueRecord, ...] = ()
        spaces = HeadSpaces()
        if heads:
            progress("probing the heads", 0.6)
            with noted(missing, "heads"):
                sample = next(single_texts(first)) if given.sample is None else given.sample
                joint, seen_tokens = KeyValues(), dict[int, Seen]()
                with noted(missing, "tokens that heads are given"):
                    whole = watch.passes == len(given.calls)
                    seen_tokens = watch.found() if whole else tokens_seen(network, given.calls, given.real)

                def found_maps(maps: HeadMaps, tokens: Seen | None) -> None:
                    with noted(missing, "keys and values"):
                        joint.take(maps, tokens)
                    if asked_of_heads.any:
                        spaces.take(maps)

                probed = probe_heads(network, offset, sample, seen=seen_tokens, on_maps=found_maps)
                found_heads = as_in_tokens(probed.records, depth, stacks)
                key_values = as_in_tokens(joint.records(), depth, stacks)
                if probed.missing:
                    missing["heads"] = _unprobed(probed)
                if controls and found_heads:
                    with noted(missing, "control of the heads"):
                        drawn = random_head_ranks(network, seed, offset=offset, inputs=sample)
                        by_chance = as_in_tokens(drawn, depth, stacks)
        study = HeadStudy()
        if asked_of_heads.any:
            study = study_heads(
                loaded,
                given,
                asked_of_heads,
                rows=depth,
                stack=chosen,
                stacks=stacks,
                spaces=spaces,
                controls=controls,
                seed=seed,
                missing=missing,
                progress=part(progress, 0.65, 0.75),
            )
        compared: tuple[Control, ...] = ()
        if controls:
            progress("running the controls", 0.75)
            compared = controls_of(network, given, chosen, depth[-1].layer, draws, seed, missing)
        more = _said(
            {
                "attention": lambda: attention_reasons(attended),
                "head rank": lambda: [heads_reason(found_heads, by_chance)],
                "head needs": lambda: [needs_reason(study.head_needs, study.random_head_needs)],
                "head cuts": lambda: [cut_reason(study.head_cut)],
                "head bound": lambda: [bound_reason(found_heads)],
                "keys and values": lambda: [key_value_reason(key_values, seen)],
                "what holds it up": lambda: [
                    parts_reason([row.record() for row in parts.rows], too_little=too_little_text(depth))
                ],
            },
            missing,
        )
        own_label, *other_labels = labels([chosen.name, *(one.name for one in others)])
        beside: list[StackFindings] = []
        for other, label in zip(others, other_labels, strict=True):
            progress(f"the same for {other.name}", 0.9)
            with noted(missing, f"depth of {other.name}"):
                beside.append(
                    study_stack(
                        network,
                        given,
                        other,
                        label,
                        masks=seen,
                        controls=controls,
                        draws=draws,
                        ablation=ablation,
                        seed=seed,
                        missing=missing,
                        of_heads=[one for one in more if one.topic in ("head rank", "head need")],
                        heads=found_heads,
                    )
                )
        progress("judging", 0.98)
        plan = plan_of(network, found_heads, chosen, depth, seen, own_label if len(stacks) > 1 else "")
    boundaries = [row for row in depth if row.part == "boundary"]
    return AuditFindings(
        model=_facts(loaded, boundaries[-1].layer, given.width, () if loss.warning is None else (loss.warning,)),
        text=TextFacts(
            len(given.real),
            () if given.batch is None else tuple(given.batch.lengths),
            any(one is not None for one in given.real),
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
        verdict=joined(
            judge(
                f"{loaded.name}: {own_label}" if beside else loaded.name,
                depth,
                masks=masks_without(seen, others),
                controls=compared,
                more=more,
                plan=plan,
                seed=seed,
                more_text=given.more_text,
                of_text=given.batch is not None,
            ),
            beside,
        ),
        stack=chosen.name,
        other_stacks=tuple(beside),
        stack_label=own_label,
        attention=attended,
        missing=missing,
        provenance=provenance(command),
        measured_rate=layer_rate(boundaries),
        random_heads=by_chance,
        key_values=key_values,
        pooled=pool.rows(seed, depth, chosen.name if beside else ""),
        **vars(study),
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


def _stacks(
    network: nn.Module, given: Mapping[str, Any], name: str | None
) -> tuple[BlockStack, Sequence[BlockStack]]:
    """The stack to measure and the others through which the inputs run; none where the user named one."""
    if name is not None:
        return choose_stack(network, name), ()
    # The library's models of sound or images have ids as well, those of the text that they are to give.
    ran = stacks_that_run(network, given, "input_ids" if of_library(network) else ids_argument(network, given))
    require(
        len(ran) > 0,
        required=f"inputs that run through one of {', '.join(one.name for one in find_stacks(network))}",
        got="inputs that run through none of them",
        remedy="give the inputs that the model needs",
    )
    return ran[0], ran[1:]


@contextlib.contextmanager
def running(name: str, remedy: str) -> Iterator[None]:
    """A model that fails inside its forward pass is refused in one line; our own refusals pass through."""
    try:
        yield
    except RequestError:
        raise
    except Exception as error:
        raise RequestError(
            required=f"{name} to run on these inputs",
            got=reason_of(error),
            remedy=remedy,
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
        inner = unwrapped(model)
        body = body_of(inner)
        whole = None if body is inner else inner
        return LoadedModel(body, tokenizer, type(inner).__name__, IN_MEMORY, whole=whole)
    return open_model(model, **options)


def _reading(
    loaded: LoadedModel, texts: Sequence[str] | None, inputs: Any, tokens: int, passages: int | None
) -> Reading:
    """What the model reads: the inputs, or the texts by its tokenizer."""
    if inputs is None:
        main = getattr(loaded.network, "main_input_name", "input_ids")
        require(
            loaded.tokenizer is not None or main == "input_ids",
            required=f"{main}, which is what {loaded.name} reads",
            got="text",
            remedy=f'from Python: rankfall.audit("{loaded.name}", inputs={{"{main}": tensor, ...}})',
        )
        require(
            loaded.tokenizer is not None,
            required="a tokenizer to read texts with",
            got=f"{loaded.name} without one",
            remedy=(
                "pass tokenizer= or inputs="
                if loaded.source == IN_MEMORY
                else "save it into the model's folder, or use --weights-only; in Python pass tokenizer= or inputs="
            ),
        )
        if passages is None:
            passages = PASSAGES_IN_ALL if texts is None else math.ceil(PASSAGES_IN_ALL / max(1, len(texts)))
        inputs = encode(
            loaded.tokenizer, [shipped_text()] if texts is None else texts, tokens=tokens, passages=passages
        )
        _require_positions(loaded.network, inputs)
        _require_known_tokens(loaded.network, inputs)
    inputs = as_tensors(inputs)
    if of_library(loaded.network):
        return read_by_library(loaded.network, inputs, loaded.tokenizer)
    return read_by_module(loaded.network, inputs, loaded.tokenizer)


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
    try:
        table = network.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        # Modules that are none of the library's, and models of two halves, which do not say which table is theirs.
        return
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
    given: Reading,
    options: Mapping[str, Any],
    missing: dict[str, str],
    attention: AttentionObserver | None,
) -> tuple[list[DepthRow], list[ObservedMask], Coverage | None]:
    """Tokens by depth, masks and statistics of attention, in one pass; without masks, if those cannot be had."""
    depth: list[DepthRow] | None = None
    seen: list[ObservedMask] = []
    coverage: Coverage | None = None
    options = {**options, "real": given.real, "names": given.names}
    with noted(missing, "mask"):
        if runs_as_is(network):
            observer = MaskObserver(given.real, attention)
            with recorded(network, observer.see, own=True, on_leaf=observer.see_linear) as recorder:
                depth = measure_depth(network, given.calls, **options)
            seen, coverage = observer.masks(), recorder.coverage()
        else:
            # Attention kernels that do not show their mask: eager attention does, in a pass of its own.
            seen, coverage = observe_masks(network, given.calls[0], given.real, attention)
        if not coverage.complete:
            missing["attention"] = coverage.reason
    if depth is None:
        depth = measure_depth(network, given.calls, **options)
    return depth, seen, coverage


def _attention(watched: AttentionObserver | None, missing: dict[str, str]) -> list[HeadAttention]:
    found: list[HeadAttention] = []
    if watched is not None:
        with noted(missing, "attention statistics"):
            found = watched.heads()
        if watched.missing:
            name, reason = next(iter(watched.missing.items()))
            missing["attention statistics"] = f"{len(watched.missing)} attention modules, the first {name}: {reason}"
        elif not found and not missing.keys() & {"mask", "attention", "attention statistics"}:
            missing["attention statistics"] = "no attention of this model was seen"
    return found


def _unprobed(probed: ProbedHeads) -> str:
    modules = len(probed.missing) + len({one.module for one in probed.records})
    name, reason = next(iter(probed.missing.items()))
    return f"{len(probed.missing)} of {modules} attention modules, the first {name}: {reason}"


def _said(topics: Mapping[str, Callable[[], Sequence[Reason | None]]], missing: dict[str, str]) -> list[Reason]:
    """What there is to say about each topic; words that cannot be found are missing, and the numbers stay."""
    found: list[Reason] = []
    for name, said in topics.items():
        with noted(missing, f"words about {name}"):
            found += [one for one in said() if one is not None]
    return found


def _facts(loaded: LoadedModel, layers: int, width: int | None, warnings: tuple[str, ...]) -> ModelFacts:
    config = getattr(loaded.network, "config", None)
    width = width or aliases.number(config, aliases.WIDTH) or 0
    kind = str(getattr(config, "model_type", type(loaded.network).__name__))
    notes = (*loaded.notes, *warnings)
    return ModelFacts(loaded.name, loaded.source, kind, loaded.parameters, layers, width, notes)
