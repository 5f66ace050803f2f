"""Weights read by name are what the running model computes with: every listed layout, on all its examples."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tests.models.small import MEASURED
from torch import Tensor, nn

from rankfall.catalogue import LAYOUTS
from rankfall.errors import RequestError
from rankfall.models.architectures.small import candidate_inputs, small_models
from rankfall.models.heads import weights
from rankfall.models.heads.maps import HeadMaps
from rankfall.models.heads.ranks import head_ranks
from rankfall.models.heads.record import head_records
from rankfall.models.heads.weights import WeightLayout, maps_from_tensors

# One modelling file of the library is compiled with torch.jit.script when it is imported.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")

# Examples beside the declared ones, where a setting of the configuration changes the order of the rows.
MORE = [
    ("falcon", "falcon", {"new_decoder_architecture": True}),
    ("falcon", "falcon", {"multi_query": False, "alibi": True}),
]
# Images are as large as ever in a small model; these are smaller.
IMAGES = {kind: {"image_size": 32, "patch_size": 8} for kind in ("vit", "dpt")}
CASES = [(layout.name, kind, dict(layout.settings)) for layout in LAYOUTS for kind in layout.examples]
CASES += MORE
every_case = pytest.mark.parametrize(
    ("name", "kind", "settings"), CASES, ids=[" ".join([kind, *settings]) for _, kind, settings in CASES]
)


def tiny(kind: str, settings: dict[str, Any]) -> tuple[Any, dict[str, Tensor]]:
    """A small random model that runs, with inputs for it; gains and biases are moved away from one and zero."""
    for model in small_models(kind, **IMAGES.get(kind, {}), **settings):
        if inputs := _runnable_inputs(model):
            break
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    if model._can_set_attn_implementation():
        model.set_attn_implementation("eager")
    return model, inputs


def _runnable_inputs(model: Any) -> dict[str, Tensor]:
    """Inputs that the model accepts, every token at position 0, so that rotations leave queries and keys alone."""
    accepted = inspect.signature(model.forward).parameters
    for inputs in candidate_inputs(model):
        if "input_ids" in inputs:
            inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
            if "position_ids" in accepted:
                inputs["position_ids"] = torch.zeros_like(inputs["input_ids"])
        try:
            with torch.no_grad():
                model(**inputs)
        except Exception:  # an input that this architecture does not take; the next may do
            continue
        return inputs
    return {}


class Layer:
    """One attention layer inside the running model, with tokens of our own put in front of it."""

    def __init__(self, model: Any, inputs: dict[str, Tensor], layout: WeightLayout, stem: str) -> None:
        self.model, self.inputs = model, inputs
        self.attention = model.get_submodule(stem + layout.module)
        self.projection = model.get_submodule(stem + layout.output)

    def run(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Attention weights (h, n, n), what enters the output map (n, h v), and what leaves it (n, o)."""
        kept: dict[str, Tensor] = {}
        with self._hooks(tokens, kept), torch.no_grad():
            self.model(**self.inputs)
        return kept["weights"], kept["entering"], kept["leaving"]

    @contextmanager
    def _hooks(self, tokens: Tensor, kept: dict[str, Tensor]) -> Iterator[None]:
        def replace(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
            bound = inspect.signature(module.forward).bind(*args, **named)
            name, given = next(iter(bound.arguments.items()))
            ours = torch.zeros_like(given)
            ours[:, : len(tokens)] = tokens.to(given.dtype)
            ours[:, len(tokens) :] = tokens[-1].to(given.dtype)
            bound.arguments[name] = ours
            for table in (bound.arguments, bound.arguments.get("kwargs", {})):
                if "output_attentions" in table:
                    table["output_attentions"] = True
            return bound.args, bound.kwargs

        def keep_weights(module: nn.Module, args: Any, output: Any) -> None:
            found = [one for one in output if isinstance(one, Tensor) and one.ndim == 4]
            kept["weights"] = found[-1][0].double()

        def keep_projected(module: nn.Module, args: Any, output: Tensor) -> None:
            kept["entering"] = args[0].reshape(-1, args[0].shape[-1])[: output.shape[-2]].double()
            kept["leaving"] = output.reshape(-1, output.shape[-1])[: output.shape[-2]].double()

        handles = [
            self.attention.register_forward_pre_hook(replace, with_kwargs=True),
            self.attention.register_forward_hook(keep_weights),
            self.projection.register_forward_hook(keep_projected),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        """What both tokens together add to the logits, for each head: differences cancel biases and positions."""

        def odds(asked: Tensor, seen: Tensor) -> Tensor:
            weights = self.run(torch.stack([seen, asked]))[0]
            return (weights[:, 1, 0] / weights[:, 1, 1]).log()

        none = torch.zeros_like(query)
        return odds(query, key) - odds(query, none) - odds(none, key) + odds(none, none)

    def values(self, token: Tensor) -> tuple[Tensor, Tensor]:
        """Before and after the output map, where all tokens are equal, so that no attention weight matters."""
        _, entering, leaving = self.run(token[None])
        _, entering_none, leaving_none = self.run(torch.zeros_like(token)[None])
        return entering[0] - entering_none[0], leaving[0] - leaving_none[0]


def layers_of(name: str, model: Any) -> tuple[list[str], list[HeadMaps]]:
    tensors, config = model.state_dict(), model.config.to_dict()
    maps = list(maps_from_tensors(tensors, config))
    assert {one.source for one in maps} == {f"names of {name}"}
    return LAYOUTS[name].layers(tensors, config), maps


@every_case
def test_weights_read_by_name_are_those_the_model_uses(name: str, kind: str, settings: dict[str, Any]) -> None:
    model, inputs = tiny(kind, settings)
    generator = torch.Generator().manual_seed(2)
    for stem, maps in zip(*layers_of(name, model), strict=True):
        layer = Layer(model, inputs, LAYOUTS[name], stem)
        width = maps.query.shape[1]
        token = torch.randn(width, generator=generator).double()
        entering, leaving = layer.values(token)
        value = torch.einsum("d,gdv->gv", token, maps.value).repeat_interleave(
            maps.query.shape[0] // maps.value.shape[0], dim=0
        )
        assert maps.output is not None
        torch.testing.assert_close(entering, value.flatten(), rtol=0, atol=1e-3 * float(value.abs().max()))
        through = torch.einsum("hv,hvo->o", value, maps.output)
        torch.testing.assert_close(leaving, through, rtol=0, atol=1e-3 * float(through.abs().max()))
        if maps.qk_norm:
            # Normed queries and keys give no bilinear form; probing measures their linear part.
            continue
        pairs = torch.randn(3, 2, width, generator=generator).double()
        forms = maps.query_key_forms()
        matrix = (forms.left @ forms.right.mT)[:, :width, :width]
        predicted = torch.einsum("pd,hde,pe->ph", pairs[:, 0], matrix, pairs[:, 1])
        size = (2 / predicted.abs().max()).sqrt()
        scores = torch.stack([layer.score(size * query, size * key) for query, key in pairs]) / size**2
        scale = (scores * predicted).sum() / predicted.square().sum()
        assert scale > 0
        torch.testing.assert_close(scores, scale * predicted, rtol=0, atol=1e-4 * float(scores.abs().max()))


@every_case
def test_ranks_by_name_are_those_by_probing(name: str, kind: str, settings: dict[str, Any]) -> None:
    model, _ = tiny(kind, settings)
    stems, maps = layers_of(name, model)
    probed = head_ranks(model)
    if probed[0].source != "probe":
        assert [one for layer in maps for one in head_records(layer)] == list(probed)
        return
    for stem, layer in zip(stems, maps, strict=True):
        owner = stem + LAYOUTS[name].module
        theirs = [one for one in probed if one.module == owner]
        ours = head_records(layer)
        assert len(ours) == len(theirs) > 0
        for mine, other in zip(ours, theirs, strict=True):
            for column in ("head", "kv_head", "head_dim", "heads", "width", "value_dim", "qk_rank", "ov_rank"):
                assert getattr(mine, column) == getattr(other, column), column
            for column in MEASURED:
                assert getattr(mine, column) == pytest.approx(getattr(other, column), rel=1e-6), column
            assert other.normed_queries_and_keys or not mine.normed_queries_and_keys


def test_names_of_layouts_are_those_in_the_catalogue() -> None:
    assert [layout.name for layout in LAYOUTS] == list(LAYOUTS.names)
    written = {one.name for one in vars(weights).values() if isinstance(one, WeightLayout)}
    assert written <= set(LAYOUTS.names)
    assert all(layout.examples for layout in LAYOUTS)


@pytest.mark.parametrize("kind", ["bert", "gpt2", "gpt_neox", "qwen3"])
def test_weights_of_another_configuration_are_refused(kind: str) -> None:
    model, _ = tiny(kind, {})
    tensors, config = model.state_dict(), model.config.to_dict()
    (heads,) = {name for name in ("n_head", "num_attention_heads") if name in config}
    for count in (7, 10**6):
        with pytest.raises(RequestError, match="that fit the heads of the configuration"):
            list(maps_from_tensors(tensors, {**config, heads: count}))
    with pytest.raises(RequestError, match="the number of heads in the configuration"):
        list(maps_from_tensors(tensors, {**config, heads: 0}))
    if kind in ("gpt2", "gpt_neox"):
        with pytest.raises(RequestError, match="that fit the heads of the configuration"):
            list(maps_from_tensors(tensors, {**config, "head_dim": 10**9}))


def test_what_is_no_matrix_is_refused_by_its_name() -> None:
    model, _ = tiny("bert", {})
    name = "encoder.layer.0.attention.self.key.weight"
    for shape in ((0, 4), (4,), ()):
        tensors = {**model.state_dict(), name: torch.zeros(shape)}
        with pytest.raises(RequestError, match=f"a matrix of numbers under the name {name}"):
            list(maps_from_tensors(tensors, {**model.config.to_dict(), "text_config": ["no table"]}))
    with pytest.raises(RequestError, match="that fit the heads"):
        list(maps_from_tensors({**model.state_dict(), name: torch.zeros(32, 5)}, model.config.to_dict()))
