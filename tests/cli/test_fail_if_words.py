"""What is printed of conditions that hold: no place is left out without a word."""

from __future__ import annotations

from rankfall.cli.series import places_of_failure


def test_places_beyond_the_fourth_are_counted() -> None:
    layers = [{"layer": layer, "value": 24.512 - layer} for layer in range(7)]
    assert places_of_failure(layers[:4]) == "layer 0 (24.51), layer 1 (23.51), layer 2 (22.51), layer 3 (21.51)"
    assert places_of_failure(layers).endswith("layer 3 (21.51) and 3 more")


def test_every_stack_is_named_however_many_layers_the_first_has() -> None:
    layers = [{"layer": layer, "value": 2.0} for layer in range(5)]
    there = [{**at, "stack": "decoder.block"} for at in layers[:2]]
    assert places_of_failure(layers + there, "encoder.block") == (
        "layer 0 of encoder.block (2), layer 1 of encoder.block (2), layer 2 of encoder.block (2),"
        " layer 3 of encoder.block (2) and 1 more of encoder.block;"
        " layer 0 of decoder.block (2), layer 1 of decoder.block (2)"
    )
    assert places_of_failure(layers[:1] + there) == (
        "layer 0 (2); layer 0 of decoder.block (2), layer 1 of decoder.block (2)"
    )


def test_an_answer_says_whether_it_is_of_the_stream_or_the_output() -> None:
    said = [{"layer": 2, "value": "aligned", "place": place, "stack": "decoder"} for place in ("stream", "output")]
    assert places_of_failure(said) == "stream at layer 2 of decoder (aligned), output at layer 2 of decoder (aligned)"
