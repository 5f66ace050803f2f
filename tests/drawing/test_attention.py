"""Maps of heads: every head in its place, heads that do nothing marked, two stacks side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from rankfall.drawing.attention import draw_attention_depth, draw_attention_maps


def table(layers: int, heads: int, modules: str = "layers", kind: str = "self") -> list[dict[str, Any]]:
    return [
        {
            "layer": layer,
            "module": f"{modules}.{layer}",
            "head": head,
            "kind": kind,
            "relative_entropy": layer / 100 + head / 1000,
            "first_token_mass": 0.2,
            "sink_mass": 0.1 * head,
            "output_share": 1 / heads,
            "does_nothing": "itself" if (layer, head) == (2, 1) else None,
            "logit_max": 5.0,
            **{f"logit_q{share:02d}": share / 10 for share in (1, 25, 50, 75, 99)},
        }
        for layer in range(1, layers + 1)
        for head in range(heads)
    ]


@pytest.mark.parametrize(("layers", "shape"), [(3, (1, 3)), (20, (3, 1))])
def test_every_head_is_in_its_place(layers: int, shape: tuple[int, int]) -> None:
    figure = draw_attention_maps(pd.DataFrame(table(layers, 4)), "a model")
    panels = [axes for axes in figure.axes if axes.get_images()]
    place = panels[0].get_subplotspec()
    assert place is not None
    assert place.get_gridspec().get_geometry() == shape
    entropy, mass, share = (np.asarray(axes.get_images()[0].get_array()) for axes in panels)
    assert entropy.shape == (4, layers)
    assert entropy[3, 1] == pytest.approx(0.023)
    assert mass[2, 0] == pytest.approx(0.4)
    assert np.allclose(share, 1.0)
    (cross,) = panels[2].get_lines()
    assert (list(cross.get_xdata()), list(cross.get_ydata())) == ([2], [1])


def test_two_stacks_stand_one_after_the_other_and_other_tokens_are_left_out() -> None:
    rows = [*table(2, 4, "encoder"), *table(2, 4, "decoder"), *table(2, 4, "cross", "cross")]
    figure = draw_attention_maps(pd.DataFrame(rows), "a model")
    image = figure.axes[0].get_images()[0].get_array()
    assert image is not None
    assert image.shape == (4, 4)
    assert figure.axes[0].get_xlabel() == "attention module, in order"


def test_what_the_mask_predicts_lies_beside_the_mass() -> None:
    masks = pd.DataFrame(
        {
            "layer": [1, 2, 3],
            "predicted_first_token_uniform": [0.2, 0.3, 0.4],
            "predicted_first_token_rotary": [None, None, None],
        }
    )
    mass = draw_attention_depth(pd.DataFrame(table(3, 4)), "a model", masks).axes[0]
    lines = {line.get_label(): list(line.get_ydata()) for line in mass.get_lines()}
    assert lines["mask alone predicts"] == [0.2, 0.3, 0.4]
    assert "mask and rotary positions predict" not in lines


def test_mass_and_logits_by_depth() -> None:
    figure = draw_attention_depth(pd.DataFrame(table(3, 4)), "a model")
    mass, logits = figure.axes
    labels = [line.get_label() for line in mass.get_lines()]
    assert "learned sink, mean" in labels
    assert [line.get_label() for line in logits.get_lines()] == ["median; bands 50 %, 98 %", "largest of a head"]
    without = pd.DataFrame(table(3, 4)).assign(sink_mass=0.0, logit_max=None)
    mass, logits = draw_attention_depth(without, "a model").axes
    assert "learned sink, mean" not in [line.get_label() for line in mass.get_lines()]
    assert not logits.get_lines()
