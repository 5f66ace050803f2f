"""The interactive plot of a figure holds the figure's own numbers, names, looks and scales."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.lines import Line2D

from rankfall.drawing.canvas import canvas
from rankfall.drawing.from_matplotlib import plot_of
from tests.drawing.read import panels_of


def test_lines_keep_their_numbers_names_and_scales() -> None:
    figure, axes = canvas()
    axes[0, 0].loglog([1, 10, 100], [1.0, 0.1, np.nan], label="falls", linestyle="--", marker="s", color="#D55E00")
    axes[0, 0].plot([1, 2], [1, 1], label="_hidden")
    (panel,) = panels_of(figure)
    first, second = panel["series"]
    assert (first["x"], first["y"]) == ([1.0, 10.0, 100.0], [1.0, 0.1, None])
    assert (first["name"], first["legend"]) == ("falls", True)
    assert (first["dash"], first["symbol"], first["colour"]) == ("dash", "square", "#d55e00")
    assert (second["name"], second["legend"]) == ("", False)
    assert panel["x"]["log"]
    assert panel["y"]["log"]
    assert panel["x"]["range"] == pytest.approx(list(axes[0, 0].get_xlim()))


def test_panels_stand_where_they_stood() -> None:
    figure, axes = canvas(2, 3)
    for number, one in enumerate(axes.flat):
        one.set_title(f"panel {number}")
    axes[1, 2].set_visible(False)
    assert [(panel["title"], panel["cell"]) for panel in panels_of(figure)] == [
        (f"panel {3 * row + column}", [row, column, 1, 1]) for row in range(2) for column in range(3)
    ][:-1]


def test_bars_bands_points_and_images() -> None:
    figure, axes = canvas(1, 2)
    axes[0, 0].bar(["a", "b"], [1, 2], bottom=[0, 0.5], label="bars")
    axes[0, 0].scatter([0.5, 0.7], [1.5, 1.7], marker="^", color="#0072B2", alpha=0.5)
    axes[0, 0].fill_between([0, 1], [0, 0], [1, 1])
    upper = axes[0, 1].imshow([[1.0, 2.0], [3.0, np.nan]], vmin=0, vmax=4, cmap="RdBu_r")
    figure.colorbar(upper, ax=axes[0, 1], label="how much")
    left, right = panels_of(figure)
    kinds = {one["type"]: one for one in left["series"]}
    bars = kinds["bars"]
    assert (bars["places"], bars["lengths"], bars["base"]) == ([0.0, 1.0], [1.0, 2.0], [0.0, 0.5])
    assert left["x"]["ticks"] == [[0.0, "a"], [1.0, "b"]]
    points = kinds["line"]
    assert (points["x"], points["y"], points["line"]) == ([0.5, 0.7], [1.5, 1.7], False)
    assert (points["symbol"], points["colour"], points["opacity"]) == ("up", "#0072b2", 0.5)
    assert {(x, y) for x, y in zip(kinds["area"]["x"], kinds["area"]["y"], strict=True)} == {
        (0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0)
    }  # fmt: skip
    (heat,) = right["series"]
    # The first row of an image is at the top, and the axis runs down.
    assert (heat["values"], heat["y"], right["y"]["range"]) == ([1.0, 2.0, 3.0, None], [-0.5, 1.5], [1.5, -0.5])
    assert (right["scale"]["label"], right["scale"]["low"], right["scale"]["high"]) == ("how much", 0.0, 4.0)
    # From blue to red, as the picture has it.
    assert heat["scale"]["colours"][0] == [5, 48, 97]
    assert heat["scale"]["colours"][-1] == [103, 0, 31]


@pytest.mark.parametrize(("origin", "rows"), [("lower", [1.0, 2.0, 3.0]), ("upper", [3.0, 2.0, 1.0])])
def test_rows_of_a_map_run_up_the_axis(origin, rows) -> None:
    figure, axes = canvas()
    axes[0, 0].imshow([[1.0], [2.0], [3.0]], origin=origin, extent=(0, 1, 10, 40), aspect="auto")
    ((heat,),) = (panel["series"] for panel in panels_of(figure))
    assert (heat["values"], heat["y"]) == (rows, [10.0, 40.0])


def test_lines_and_spans_across_the_panel_are_no_data() -> None:
    figure, axes = canvas()
    axes[0, 0].plot([0, 4], [0, 1])
    axes[0, 0].axhline(0.5)
    axes[0, 0].axvline(3, color="0.5")
    axes[0, 0].axhspan(0.1, 0.2, color="0.9")
    axes[0, 0].errorbar([1, 2], [0.5, 0.6], yerr=[0.1, 0.2], label="with errors", capsize=2)
    series = panels_of(figure)[0]["series"]
    asides = [one.get("aside") for one in series]
    assert sorted(filter(None, asides)) == ["errors", "errors", "errors", "span", "x", "y"]
    curve = next(one for one in series if one.get("name") == "with errors" and one["legend"])
    assert (curve["x"], curve["y"], curve.get("aside")) == ([1.0, 2.0], [0.5, 0.6], None)
    upright = next(one for one in series if one.get("aside") == "errors" and None in one["x"])
    assert upright["y"] == [0.4, 0.6, None, 0.4, 0.8]
    # Grey is a shade of the page's ink, so that it is seen on a dark page too.
    grey = next(one for one in series if one.get("aside") == "y")
    assert (grey["colour"], grey["opacity"]) == ("currentColor", 0.5)


def test_a_series_may_belong_to_another_ones_entry() -> None:
    figure, axes = canvas()
    axes[0, 0].plot([], [], marker="o", label="two layers")
    axes[0, 0].plot([1, 2], [3, 4], gid="two layers", label="_published")
    handles = [*axes[0, 0].get_legend_handles_labels()[0], Line2D([], [], linestyle=":", label="dotted: published")]
    figure.legend(handles=handles, title="a title")
    plot = plot_of(figure, "name", "says")
    entry, curve = plot["panels"][0]["series"]
    assert (entry["name"], entry["legend"], entry["x"]) == ("two layers", True, [])
    assert (curve["group"], curve["name"], curve["legend"]) == ("two layers", "published", False)
    assert [(key["type"], key["name"]) for key in plot["keys"]] == [
        ("note", "a title"),
        ("line", "dotted: published"),
    ]


def test_texts_stand_at_their_places() -> None:
    figure, axes = canvas()
    one = axes[0, 0]
    one.plot([0, 2], [0, 2])
    one.text(1, 0.5, r"$\mu_2$ here", ha="right", va="top", color="grey")
    one.text(0.9, 0.1, "corner", transform=one.transAxes)
    one.annotate("moved", (2, 1), xytext=(3.6, -7.2), textcoords="offset points")
    here, corner, moved = panels_of(figure)[0]["texts"]
    assert (here["text"], here["x"], here["y"], here["anchor"], here["sinks"]) == ("μ₂ here", 1.0, 0.5, "end", 10)
    assert (corner["inside"], corner["x"], corner["y"]) == (True, 0.9, 0.1)
    assert (moved["x"], moved["y"], moved["off"]) == (2.0, 1.0, [5.0, -10.0])


def test_axes_say_what_the_page_cannot_know() -> None:
    figure, axes = canvas(1, 3)
    plain, symmetric, fixed = axes[0]
    plain.semilogy([1, 2, 3], [1e-3, 1e-6, 1e-9])
    plain.xaxis.get_major_locator().set_params(integer=True)
    symmetric.plot([-100, 100], [0, 1])
    symmetric.set_xscale("symlog", linthresh=0.5)
    fixed.plot([1, 4], [1, 2])
    fixed.set_xscale("log", base=2)
    fixed.set_yticks([1, 2], ["1", "2"])
    first, second, third = panels_of(figure)
    # Plain numbers are left to the page.
    assert "ticks" not in first["y"]
    assert first["x"]["whole"]
    assert second["x"]["linear"] == 0.5
    assert third["x"]["ticks"] == [[1.0, "1"], [2.0, "2"], [4.0, "4"]]
    assert third["y"]["ticks"] == [[1.0, "1"], [2.0, "2"]]
