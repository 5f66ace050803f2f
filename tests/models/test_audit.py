"""The whole audit on small random models, from Python and from the command line."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.calls import call, refused
from tests.models.small import save_small, small_model, some_text

from rankfall.drawing.audit import PANELS, draw_token_depth
from rankfall.errors import RequestError
from rankfall.models.architectures.small import candidate_inputs, small_models
from rankfall.models.audit import audit
from rankfall.models.controls.twin import separate_twin
from rankfall.models.depth.capture import capture
from rankfall.models.inputs.texts import encode, shipped_text, shuffled
from rankfall.models.load.open import open_model

MEASURES = [
    "mu",
    "relative_mu",
    "rank",
    "effective_rank",
    "energy_rank",
    "stable_rank",
    "mean_abs_cosine",
    "min_singular_value",
]

NO_HEAD = "the model has no language-model head, or its weights are not in the files"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small(tmp_path_factory.mktemp("audit") / "model")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(some_text(100))
    return path


def test_json_has_what_the_contract_says(folder: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, "audit", str(folder), "--text", str(text), "--tokens", "20", "--json", "--inside")
    assert status == 0
    record = json.loads(out)
    assert record["schema"] == 2
    assert [row["layer"] for row in record["depth"]] == [0, 1, 2, 3]
    for row in record["depth"]:
        for view in ("raw", "unit", "centred"):
            assert set(MEASURES) <= set(row[view])
        assert row["sinks"] == []
    assert len(record["heads"]) == 3 * 4
    assert {"layer", "head", "kv_head", "head_dim", "qk_rank", "qk_effective_rank", "qk_energy_rank"} <= set(
        record["heads"][0]
    )
    assert [mask["name"] for mask in record["mask"]] == ["complete"] * 3
    assert list(record["verdict"]["statuses"]) == ["alignment", "distinctions", "domination"]
    assert "too little text" not in record["verdict"]["statuses"].values()
    assert {"first_direction_share", "rarefied", "tokens", "width"} <= set(record["depth"][0]["passages"][0])
    names = ["random_weights", "shuffled_tokens", "random_tokens"]
    assert [(one["name"], one["draw"]) for one in record["controls"]] == [(n, k) for k in range(3) for n in names]
    assert [row["layer"] for row in record["controls"][0]["depth"]] == [0, 1, 2, 3]
    assert [row["layer"] for row in record["controls"][-1]["depth"]] == [0, 2, 3]
    assert record["ablation_check"]["dtype"] == "float32"
    assert record["ablation_check"]["error"] < record["ablation_check"]["tolerance"] == 1e-3
    assert {row["part"] for row in record["inside"]} == {"attention_output", "after_attention", "mlp_output"}
    assert record["missing"] == {}
    assert record["ablation"]
    assert record["text"] == {"texts": 4, "tokens": [20] * 4, "padded": False, "loss": None, "loss_reason": NO_HEAD}


def test_a_condition_that_holds_exits_one(folder: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quick = [str(folder), "--text", str(text), "--tokens", "20", "--no-controls", "--no-ablate", "--no-heads"]
    assert call(capsys, "audit", *quick, "--fail-if", "energy_rank < 1")[0] == 0
    assert call(capsys, "audit", *quick, "--fail-if", "effective_rank < 1")[0] == 0
    status, out, _ = call(capsys, "audit", *quick, "--fail-if", "energy_rank < 1000 at last")
    assert status == 1
    assert "FAILED energy_rank < 1000 at last: layer 3" in out
    assert call(capsys, "audit", *quick, "--fail-if", "nonsense")[0] == 2


def test_too_little_text_passes_no_check_and_fails_none(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hello").write_text("w1 w2")
    quick = [str(folder), "--text", str(tmp_path / "hello"), "--no-controls", "--no-ablate", "--no-heads"]
    status, out, _ = call(capsys, "audit", *quick)
    assert status == 0
    assert "too little text to judge: one passage of 4 tokens" in " ".join(out.split())
    assert "collapsed" not in out
    for condition in ("energy_rank < 99", "energy_rank < 0", "distinctions lost"):
        status, out, _ = call(capsys, "audit", *quick, "--fail-if", condition, "--json")
        record = json.loads(out)
        assert (status, record["failed"], record["unchecked"]) == (3, [], condition)


def test_what_controls_decide_is_not_passed_without_them(
    folder: Path, text: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = [str(folder), "--text", str(text), "--tokens", "20", "--no-ablate", "--no-heads", "--draws", "1"]
    condition = "distinctions reduced at output"
    status, out, said = call(capsys, "audit", *quick, "--no-controls", "--fail-if", condition)
    assert (status, out) == (2, "")
    assert "controls to decide 'distinctions reduced at output'" in " ".join(said.split())

    def refuse(*args: Any, **options: Any) -> None:
        raise RequestError(required="memory", got="none", remedy="buy some")

    monkeypatch.setattr("rankfall.models.stacks.run_controls", refuse)
    status, out, _ = call(capsys, "audit", *quick, "--fail-if", condition)
    assert status == 3
    assert f"NOT CHECKED {condition}: there are no random weights to compare with: " in " ".join(out.split())
    both = [*quick, "--fail-if", condition, "--fail-if", "energy_rank > 0", "--json"]
    status, out, _ = call(capsys, "audit", *both)
    record = json.loads(out)
    assert (status, record["unchecked"], [one["condition"] for one in record["failed"]]) == (
        1,
        condition,
        ["energy_rank > 0"],
    )


def test_an_answer_of_the_verdict_can_be_a_condition(
    folder: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = [str(folder), "--text", str(text), "--tokens", "20", "--no-controls", "--no-ablate", "--no-heads"]
    _, out, _ = call(capsys, "audit", *quick, "--json")
    places = [
        (one["question"], place["place"], place["status"])
        for one in json.loads(out)["verdict"]["findings"]
        for place in one["places"]
    ]
    asked = {"alignment": "collapsed", "distinctions": "lost", "domination": "dominated"}
    for question, place, said in places:
        status, out, _ = call(capsys, "audit", *quick, "--fail-if", f"{question} {asked[question]} at {place}")
        assert status == int(said == asked[question])


def test_an_open_answer_passes_with_a_line_that_says_so(
    folder: Path, text: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = [str(folder), "--text", str(text), "--tokens", "20", "--no-controls", "--no-ablate", "--no-heads"]
    monkeypatch.setattr("rankfall.models.condition.AnswerCondition.held_in", lambda *_: [])
    monkeypatch.setattr("rankfall.models.condition.AnswerCondition.open_in", lambda *_: "the passages disagree")
    asked = ("--fail-if", "distinctions lost", "--fail-if", "energy_rank < 0")
    status, out, _ = call(capsys, "audit", *quick, *asked)
    assert status == 0
    assert out.count("OPEN") == 1
    assert "OPEN distinctions lost: the passages disagree" in " ".join(out.split())
    record = json.loads(call(capsys, "audit", *quick, *asked, "--json")[1])
    assert record["open"] == [{"condition": "distinctions lost", "reason": "the passages disagree"}]
    assert (record["failed"], record["unchecked"]) == ([], "")


def test_the_report_is_written(folder: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report"
    words = ("--text", text, "--text", text, "--tokens", "20", "--out", out)
    status, _, said = call(capsys, "audit", folder, *words)
    assert status == 0
    assert "report.html" in "".join(said.split())
    written = {path.name for path in out.iterdir()}
    assert {"report.html", "depth.csv", "depth.parquet", "token_rank.png", "token_rank.svg", "heads.csv"} <= written
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "Are distinctions between tokens lost?" in page


def test_heads_from_the_weights_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, "audit", str(folder), "--weights-only", "--json")
    assert status == 0
    read = json.loads(out)["heads"]
    probed = audit(str(folder), [some_text(30)], tokens=12, controls=False, ablation=False).heads
    assert len(read) == len(probed) == 12
    for ours, theirs in zip(read, probed, strict=True):
        assert ours["qk_rank"] == theirs.qk_rank
        assert ours["qk_effective_rank"] == pytest.approx(theirs.qk_effective_rank, rel=1e-6)
        assert ours["qk_energy_rank"] == pytest.approx(theirs.qk_energy_rank, rel=1e-6)


def test_a_module_in_memory_with_token_ids() -> None:
    model = small_model("llama")
    model.train()
    ids = torch.randint(4, 60, (2, 14))
    result = audit(model, inputs=ids, controls=True, ablation=False)
    assert model.training
    assert result.model.layers == 3
    assert result.depth[0].texts == 2
    assert result.depth[0].interval is not None
    assert len(result.heads) == 12
    assert str(result.masks[0].mask) == "causal"


QUICK: dict[str, Any] = {"heads": False, "controls": False, "ablation": False}


def test_depth_and_masks_share_one_pass() -> None:
    model = small_model("llama")
    runs: list[int] = []
    model.register_forward_pre_hook(lambda module, args: runs.append(1))
    result = audit(model, inputs=torch.randint(4, 60, (2, 14)), **QUICK)
    assert len(runs) == 1
    assert [str(one.mask) for one in result.masks] == ["causal"] * 3
    assert result.coverage is not None
    assert result.coverage.complete
    assert result.record()["coverage"]["state"] == "complete"
    assert result.record()["coverage"]["calls"] == {"interface": 3}


def test_attention_that_shows_no_mask_is_watched_in_a_pass_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankfall.models.audit.runs_as_is", lambda network: False)
    model = small_model("llama")
    runs: list[int] = []
    model.register_forward_pre_hook(lambda module, args: runs.append(1))
    result = audit(model, inputs=torch.randint(4, 60, (2, 14)), **QUICK)
    assert len(runs) == 2
    assert [str(one.mask) for one in result.masks] == ["causal"] * 3


def flags(model: torch.nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


def test_training_flags_are_put_back_one_by_one() -> None:
    model = small_model("llama")
    model.train()
    model.layers[1].eval()
    before = flags(model)
    ids = torch.randint(4, 60, (1, 14))
    audit(model, inputs=ids, **QUICK)
    assert flags(model) == before
    with pytest.raises(RequestError, match="layers from 0"):
        audit(model, inputs=ids, layers=[99], **QUICK)
    assert flags(model) == before


@pytest.mark.parametrize(
    ("target", "part"),
    [
        ("rankfall.models.attention.masks.allowed_pattern", "mask"),
        ("rankfall.models.audit.recorded", "mask"),
        ("rankfall.models.audit.probe_heads", "heads"),
        ("rankfall.models.stacks.run_controls", "controls"),
        ("rankfall.models.stacks.ablate", "ablation"),
        ("rankfall.models.audit.attention_reasons", "words about attention"),
        ("rankfall.models.audit.key_value_reason", "words about keys and values"),
    ],
)
def test_no_failing_part_ends_an_audit(target: str, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr(target, fail)
    result = audit(small_model("llama"), inputs=torch.randint(4, 60, (1, 14)))
    assert result.missing == {part: "ZeroDivisionError: on purpose"}
    assert [row.layer for row in result.boundaries] == [0, 1, 2, 3]
    assert bool(result.masks) == (part != "mask")
    assert bool(result.heads) == (part != "heads")
    assert bool(result.controls) == (part != "controls")
    assert bool(result.ablation) == (part != "ablation")


def test_controls_are_compared_in_the_view_in_which_the_model_is_judged() -> None:
    result = audit(small_model("llama"), inputs=torch.randint(4, 60, (2, 16)), heads=False, ablation=False)
    shares: dict[str, list[float]] = {}
    for one in result.controls:
        some = [text.values["unit"]["first_direction_share"] for text in one.rows[-1].per_text]
        shares.setdefault(one.name, []).append(math.prod(some) ** (1 / len(some)))
    (stream, output) = result.verdict.findings[0].places
    assert {one.control: one.draws for one in output.controls} == {
        name: tuple(pytest.approx(value) for value in values) for name, values in shares.items()
    }
    assert all(len(values) == 3 for values in shares.values())
    # Of a stream only draws that were measured at every layer can tell which is worst.
    assert all(len(one.draws) == 1 for one in stream.controls)
    boundaries = result.control_boundaries()
    assert [[row.layer for row in rows] for rows in boundaries.values()] == [[0, 1, 2, 3]] * 3
    figure = draw_token_depth(result.boundaries, boundaries, "m")
    for panel, (measure, _) in zip(figure.axes, PANELS, strict=True):
        drawn = {line.get_label(): list(line.get_ydata()) for line in panel.lines}
        shown = {"model": result.boundaries, **{name.replace("_", " "): rows for name, rows in boundaries.items()}}
        assert drawn == {name: [row.values["unit"][measure] for row in rows] for name, rows in shown.items()}


def test_inputs_that_are_not_tokens() -> None:
    model = small_model("vit", image_size=16, patch_size=4)
    result = audit(model, inputs={"pixel_values": torch.randn(2, 3, 16, 16)}, ablation=False)
    assert [row.layer for row in result.boundaries] == [0, 1, 2, 3]
    names = ["random_weights", "shuffled_inputs", "random_inputs"]
    assert [(one.name, one.draw) for one in result.controls] == [(name, draw) for draw in range(3) for name in names]
    layers = [[row.layer for row in one.rows if row.part == "boundary"] for one in result.controls]
    assert layers == [[0, 1, 2, 3]] * 3 + [[0, 2, 3]] * 6


def test_an_encoder_decoder_reports_both_halves() -> None:
    result = audit(small_model("t5"), inputs=torch.randint(4, 60, (2, 12)), heads=False)
    assert result.stack == "encoder.block"
    assert [one.name for one in result.other_stacks] == ["decoder.block"]
    assert [row.layer for row in result.other_stacks[0].boundaries] == [0, 1, 2, 3]
    assert result.record()["other_stacks"][0]["depth"][0]["layer"] == 0
    assert any(reason.topic == "token rank" for reason in result.other_stacks[0].verdict.reasons)
    asked = audit(small_model("t5"), inputs=torch.randint(4, 60, (1, 12)), heads=False, stack="decoder")
    assert (asked.stack, asked.other_stacks) == ("decoder.block", ())
    assert {one.rows[-1].layer for one in asked.controls} == {3}
    assert asked.ablation


def test_the_stack_that_runs_is_chosen() -> None:
    model = next(small_models("llava"))
    result = audit(model, inputs=torch.randint(4, 60, (1, 12)), controls=False, ablation=False)
    assert result.stack.startswith("language_model")
    assert result.heads


def test_two_sequences_of_sound_keep_their_heads() -> None:
    model = next(small_models("whisper"))
    inputs = next(one for one in candidate_inputs(model) if "decoder_input_ids" in one)
    result = audit(model, inputs=inputs, controls=False, ablation=False)
    assert result.text.texts == 2
    assert "heads" not in result.missing
    assert len({head.module for head in result.heads}) == 6


def test_sound_without_a_text_for_the_decoder_is_told_what_to_give() -> None:
    model = next(small_models("whisper"))
    features = next(one for one in candidate_inputs(model) if "decoder_input_ids" in one)["input_features"]
    for given in (features, {"input_features": features}):
        with pytest.raises(RequestError, match=r'inputs=\{"input_features": \.\.\., "decoder_input_ids": \.\.\.\}'):
            audit(model, inputs=given, controls=False, ablation=False)


def test_a_model_that_bypasses_the_interface_says_what_is_missing() -> None:
    result = audit(small_model("bloom", n_layer=3, n_head=4), inputs=torch.randint(4, 60, (1, 12)), controls=False)
    assert "only at their softmax" in result.missing["attention"]
    assert {row.layer for row in result.ablation} == {0, 1, 2, 3}
    assert len(result.boundaries) == 4


def test_passages_and_framing(folder: Path) -> None:
    tokenizer = open_model(folder).tokenizer
    text = some_text(50)
    batch = encode(tokenizer, [text], tokens=12, passages=3)
    assert batch.lengths == [12, 12, 12]
    first = tokenizer(text, truncation=True, max_length=12)["input_ids"]
    assert batch.ids[0].tolist() == first
    assert batch.ids[1, 1:-1].tolist() == tokenizer(text, add_special_tokens=False)["input_ids"][10:20]
    assert batch.names[0][0] == "[CLS]"
    with pytest.raises(RequestError, match="text 1 to hold some words"):
        encode(tokenizer, [" "], tokens=12)


def test_controls_change_what_they_say_and_nothing_else(folder: Path) -> None:
    loaded = open_model(folder)
    batch = encode(loaded.tokenizer, [some_text(50), some_text(9, seed=1)], tokens=20)
    mixed = shuffled(batch)
    assert sorted(mixed.ids[0].tolist()) == sorted(batch.ids[0].tolist())
    assert mixed.ids[0].tolist() != batch.ids[0].tolist()
    assert mixed.ids[:, 0].tolist() == [2, 2]
    before = {name: value.clone() for name, value in loaded.network.state_dict().items()}
    twin: Any = separate_twin(loaded.network, seed=3)
    again: Any = separate_twin(loaded.network, seed=3)
    weight = "encoder.layer.0.attention.self.query.weight"
    assert torch.equal(twin.state_dict()[weight], again.state_dict()[weight])
    assert not torch.equal(twin.state_dict()[weight], before[weight])
    assert all(torch.equal(value, before[name]) for name, value in loaded.network.state_dict().items())


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["no-such-model"], "no-such-model in the local hub cache; got not there; add --allow-download"),
        (["org/never-downloaded"], "add --allow-download"),
        (["smolm2"], "not there; did you mean smollm2? Otherwise add --allow-download"),
        (["minilm", "--layers", "x"], "--layers such as"),
        (["minilm", "--dtype", "int8"], "a dtype among"),
        (["minilm", "--device", "tpu"], "device cpu"),
        (["minilm", "--text", "/no/such/file.txt"], "a readable file"),
    ],
)
def test_wrong_requests_are_one_line(
    arguments: list[str], match: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert match in refused(capsys, "audit", *arguments)


def test_options_that_cannot_be_met_are_refused_in_one_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = tmp_path / "taken"
    taken.write_text("a file")
    requests = {
        ("--layers", "9"): "layers from 0, the embeddings, to 3; got 9",
        ("--layers", "2-1"): "--layers such as 0,6,12 or 0-5, none above 9,999; got 2-1",
        ("--passages", "0"): "passages to be a whole number of at least 1; got 0",
        ("--seed", "-1"): "seed to be a whole number of at least 0; got -1",
        ("--out", str(taken)): "a place to write --out; got",
        ("--out", str(taken / "below")): "a file, where a folder would be needed",
        ("--text", str(tmp_path)): "got a folder; check the path",
        ("--weights-only", "--fail-if", "rank < 4"): "got --fail-if",
        ("--weights-only", "--out", "report"): "got --out",
    }
    for arguments, message in requests.items():
        assert message in refused(capsys, "audit", folder, "--tokens", "20", *arguments)


def test_the_table_says_what_was_read_and_shows_the_inside(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, words in (("short", 5), ("long", 50)):
        (tmp_path / name).write_text(some_text(words))
    quick = ("--no-controls", "--no-ablate", "--no-heads", "--tokens", "20", "--inside")
    both = [option for name in ("short", "long") for option in ("--text", str(tmp_path / name))]
    status, out, _ = call(capsys, "audit", str(folder), *both, *quick)
    said = " ".join(out.split())
    assert status == 0
    # Two tokens are the tokenizer's own.
    assert "means over 3 passages of 7 to 20 tokens" in said
    assert "inside the blocks" in said
    assert "attention output" in said


def test_chosen_layers_come_with_both_ends_in_one_pass(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick: dict[str, Any] = {"tokens": 20, "controls": False, "ablation": False, "heads": False}
    passes: list[int] = []
    monkeypatch.setattr(
        "rankfall.models.depth.measure.capture", lambda *a, **k: (passes.append(1), capture(*a, **k))[1]
    )
    result = audit(folder, [some_text(100)], layers=[1], **quick)
    assert len(passes) == 1
    assert [row.layer for row in result.boundaries] == [0, 1, 3]
    assert result.model.layers == 3
    whole = audit(folder, [some_text(100)], **quick)
    for some, other in zip(result.verdict.findings, whole.verdict.findings, strict=True):
        assert some.at("output") == other.at("output")
        assert some.at("output") is not None
    assert result.boundaries[-1].values == whole.boundaries[-1].values


def test_too_many_tokens_for_the_model(folder: Path) -> None:
    with pytest.raises(RequestError, match="at most 64 tokens"):
        audit(str(folder), [some_text(200)], tokens=100)


def test_the_shipped_text_is_long_enough_for_several_passages() -> None:
    # Four passages of 512 tokens, at less than a token and a half a word.
    assert 2200 <= len(shipped_text().split()) <= 2600


def test_a_model_that_reads_no_text_says_what_it_reads() -> None:
    model = next(small_models("whisper")).eval()
    with pytest.raises(RequestError, match=r"required input_features.*got text.*inputs=\{\"input_features\": tensor"):
        audit(model)
