"""The loss on the text is that of the whole model and needs no second pass; an untrained model is named as one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.calls import answer, call
from tests.models.plain import GPT, VOCABULARY
from tests.models.small import save_small, small_config, small_model, some_text

from rankfall.models import loss as module
from rankfall.models.audit import audit
from rankfall.models.loss import UNTRAINED_SHARE, _warning

BRIEF: dict[str, Any] = {"heads": False, "controls": False, "ablation": False}
IDS = torch.randint(4, 64, (2, 20), generator=torch.Generator().manual_seed(3))


def whole_model(kind: str, **changes: Any) -> Any:
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(small_config(kind, **changes)).eval()


def expected_loss(model: Any, ids: torch.Tensor) -> float:
    with torch.inference_mode():
        logits = model(input_ids=ids).logits.double()
    return float(torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()))


KINDS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"num_key_value_heads": 2}),
    ("gpt2", {}),
    ("gemma2", {"num_key_value_heads": 2, "head_dim": 8, "final_logit_softcapping": 0.2}),
    ("cohere", {"num_key_value_heads": 2, "logit_scale": 3.0}),
    ("granite", {"num_key_value_heads": 2, "logits_scaling": 0.25}),
    ("opt", {"ffn_dim": 48, "word_embed_proj_dim": 32}),
]


@pytest.mark.parametrize(("kind", "changes"), KINDS, ids=[one[0] for one in KINDS])
def test_it_is_the_models_own(kind: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """With soft caps and scales, in stretches of any length; and the model runs as before afterwards."""
    model = whole_model(kind, **changes)
    expected = expected_loss(model, IDS)
    monkeypatch.setattr(module, "LOGITS_AT_ONCE", 64 * 7)
    found = audit(model, inputs=IDS, **BRIEF)
    assert found.text.loss == pytest.approx(expected, rel=1e-5)
    assert expected_loss(model, IDS) == expected


def test_the_body_runs_no_more_often_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = whole_model("llama", num_key_value_heads=2)
    runs = []
    model.model.layers[0].register_forward_hook(lambda *_: runs.append(1))
    audit(model, inputs=IDS, **BRIEF)
    with_head = len(runs)
    runs.clear()
    audit(model.model, inputs=IDS, **BRIEF)
    assert with_head == len(runs)


def test_padding_is_left_out() -> None:
    model = whole_model("llama", num_key_value_heads=2)
    rows = [IDS[0], IDS[1][:11]]
    mask = torch.zeros_like(IDS)
    for place, row in enumerate(rows):
        mask[place, : len(row)] = 1
    found = audit(model, inputs={"input_ids": IDS, "attention_mask": mask}, **BRIEF)
    losses = [expected_loss(model, row[None]) * (len(row) - 1) for row in rows]
    assert found.text.loss == pytest.approx(sum(losses) / 29, rel=1e-5)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: small_model("bert"), "no language-model head"),
        (lambda: small_model("llama"), "no language-model head"),
        (lambda: small_model("t5"), "an encoder-decoder predicts a second text, of which no loss is computed"),
    ],
)
def test_without_a_head_there_is_a_reason(model: Any, reason: str) -> None:
    text = audit(model(), inputs=IDS, **BRIEF).text
    assert text.loss is None
    assert reason in str(text.loss_reason)


def test_no_loss_is_known_of_a_module_of_ones_own() -> None:
    text = audit(GPT(), inputs=IDS[:, :16] % VOCABULARY, **BRIEF).text
    assert (text.loss, text.loss_reason) == (None, "no loss is known of a module of one's own")


@pytest.mark.parametrize(
    ("kind", "auto", "reason"),
    [
        ("bert", "AutoModelForMaskedLM", "both sides"),
        ("bert", "AutoModelForCausalLM", "both sides"),
        ("t5", "AutoModelForSeq2SeqLM", "encoder-decoder"),
        ("bert", "AutoModelForSequenceClassification", "no causal language model"),
    ],
)
def test_other_heads_have_no_next_token_loss(kind: str, auto: str, reason: str) -> None:
    import transformers

    model = getattr(transformers, auto).from_config(small_config(kind)).eval()
    text = audit(model, inputs=IDS, **BRIEF).text
    assert text.loss is None
    assert reason in str(text.loss_reason)


def test_an_untrained_model_is_named_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save_small(tmp_path / "model", "llama")
    whole_model("llama").save_pretrained(folder)
    (tmp_path / "text.txt").write_text(some_text(40))
    arguments = ["audit", folder, "--text", tmp_path / "text.txt", "--tokens", "32"]
    arguments += ["--no-heads", "--no-controls", "--no-ablate"]
    record = answer(capsys, *arguments)
    assert record["text"]["loss"] == pytest.approx(4.16, abs=0.3)
    assert "is that of an untrained model (guessing gives 4.16)" in record["model"]["notes"][-1]
    said = " ".join(call(capsys, *arguments)[1].split())
    assert "loss on the text: 4." in said
    assert "note: the loss on the text" in said


def test_where_the_warning_begins() -> None:
    assert _warning(UNTRAINED_SHARE * 10.82 - 0.01, 50_000) is None
    assert _warning(UNTRAINED_SHARE * 10.82 + 0.01, 50_000) is not None
    assert _warning(5.50, 262_144) is None
