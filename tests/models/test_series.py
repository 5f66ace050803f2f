"""A series: audits made once and kept, through kills, damage and bad checkpoints; tables and verdict from records."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.models.small import save_small, some_text
from tests.models.trained import STEPS, save_checkpoints

import rankfall
from rankfall.errors import RequestError
from rankfall.models.series import work
from rankfall.models.series.fingerprint import files_of
from rankfall.models.series.work import identity_of, settings_of
from rankfall.store.audits import Audits
from rankfall.store.claims import Claims
from rankfall.training.engines.jobs import Job

CHEAP: dict[str, Any] = {"text": some_text(60), "tokens": 12, "passages": 2}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("run")
    save_checkpoints(base)
    return base


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the models that are really audited."""
    made: list[str] = []
    audit = work.audit

    def counting(name: str, *rest: Any, **options: Any) -> Any:
        made.append(Path(name).name)
        return audit(name, *rest, **options)

    counting.__signature__ = inspect.signature(audit)  # type: ignore[attr-defined]
    monkeypatch.setattr(work, "audit", counting)
    return made


@pytest.fixture(scope="module")
def whole(run: Path, tmp_path_factory: pytest.TempPathFactory) -> rankfall.SeriesResult:
    return rankfall.series(f"{run}/checkpoint-*", store=tmp_path_factory.mktemp("store") / "audits", **CHEAP)


def test_every_number_is_that_of_an_audit_alone(run: Path, whole: rankfall.SeriesResult) -> None:
    assert [one.step for one in whole.models] == list(STEPS)
    alone = rankfall.audit(run / "checkpoint-10", controls=False, ablate=False, **CHEAP).record()
    stored = dict(whole.models[2].record or {})
    assert {**stored["model"], "name": ""} == {**alone["model"], "name": ""}
    for part in ("depth", "heads", "mask", "text", "measured_rate"):
        assert stored[part] == alone[part], part
    depth = whole.tables()["depth"]
    mine = depth[depth["model"] == "checkpoint-10"]
    assert mine["effective_rank"].tolist() == [row["unit"]["effective_rank"] for row in alone["depth"]]
    row = whole.to_frame().set_index("model").loc["checkpoint-10"]
    assert row["effective_rank"] == alone["depth"][-1]["unit"]["effective_rank"]
    heads = whole.tables()["heads"]
    of_first = sorted(one["qk_effective_rank"] for one in alone["heads"] if one["layer"] == 1)
    median = heads[(heads["model"] == "checkpoint-10") & (heads["layer"] == 1)]["qk_effective_rank"].item()
    assert median == pytest.approx((of_first[1] + of_first[2]) / 2)


def test_nothing_is_audited_twice(run: Path, tmp_path: Path, counted: list[str]) -> None:
    store = tmp_path / "audits"
    first = rankfall.series([run / "checkpoint-0", run / "checkpoint-2"], store=store, **CHEAP)
    assert counted == ["checkpoint-0", "checkpoint-2"]
    assert not any(one.stored for one in first.models)
    again = rankfall.series(f"{run}/checkpoint-{{0,2,10}}", store=store, **CHEAP)
    assert counted == ["checkpoint-0", "checkpoint-2", "checkpoint-10"]
    assert [one.stored for one in again.models] == [True, True, False]
    assert again.models[0].record == first.models[0].record
    # A copy is the same model; other options, another text and other weights are not the same audit.
    shutil.copytree(run / "checkpoint-0", tmp_path / "copy")
    rankfall.compare(tmp_path / "copy", run / "checkpoint-2", store=store, **CHEAP)
    assert len(counted) == 3
    rankfall.series([run / "checkpoint-0"], store=store, **{**CHEAP, "tokens": 10})
    rankfall.series([run / "checkpoint-0"], store=store, **{**CHEAP, "text": some_text(60, seed=1)})
    rankfall.series([run / "checkpoint-0"], store=store, **CHEAP, heads=False)
    assert len(counted) == 6


def test_what_counts_as_the_same_audit(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    audits, folder = Audits(tmp_path / "audits"), tmp_path / "model"
    shutil.copytree(run / "checkpoint-0", folder)

    def name(**options: Any) -> str:
        return json.dumps(identity_of(folder, settings_of(options), audits))

    same = name()
    (folder / "optimizer.pt").write_bytes(b"x")
    (folder / "trainer_state.json").write_text("{}")
    assert name(device="cpu", load_seconds=1.0, command="x", allow_download=True) == same
    assert name(device="cuda:1") == name(device="cuda") != same
    assert name(layers={3, 1}) == name(layers=[1, 3]) != same
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config + " ")
    assert name() != same
    (folder / "config.json").write_text(config)
    assert name() == same
    monkeypatch.setattr(work, "RECORD", work.RECORD + 1)
    assert name() != same
    with pytest.raises(TypeError, match="unexpected keyword argument 'tokenz'"):
        name(tokenz=3)
    assert "optimizer.pt" not in files_of(folder)
    with pytest.raises(RequestError, match="without configuration or weights"):
        files_of(tmp_path)


def test_a_damaged_audit_is_made_anew(run: Path, tmp_path: Path, counted: list[str]) -> None:
    names = [run / "checkpoint-0", run / "checkpoint-2"]
    before = rankfall.series(names, store=tmp_path, **CHEAP)
    victim = tmp_path / f"{before.models[1].id}.json"
    victim.write_bytes(victim.read_bytes()[:-100])
    told: list[str] = []
    after = rankfall.series(names, store=tmp_path, note=told.append, **CHEAP)
    assert counted == ["checkpoint-0", "checkpoint-2", "checkpoint-2"]
    assert len(told) == 1
    assert "is damaged" in told[0]
    assert after.models[1].record["depth"] == before.models[1].record["depth"]
    assert len(list((tmp_path / ".damaged").iterdir())) == 1


DIES = """
import inspect, os, signal, sys
import rankfall
from rankfall.models.series import work

audit, left = work.audit, [2]
def mortal(*given, **options):
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    left[0] -= 1
    return audit(*given, **options)
mortal.__signature__ = inspect.signature(audit)
work.audit = mortal
rankfall.series(sys.argv[1], sys.argv[2], store=sys.argv[3], tokens=12, passages=2)
"""


def test_a_killed_series_goes_on(run: Path, whole: Any, tmp_path: Path, counted: list[str]) -> None:
    store = tmp_path / "audits"
    died = subprocess.run([sys.executable, "-c", DIES, f"{run}/checkpoint-*", CHEAP["text"], str(store)])
    assert died.returncode == -signal.SIGKILL
    assert len(Audits(store).ids()) == 2
    assert len(list((store / ".claims").glob("[!.]*"))) > 1, "it died with a claim"
    after = rankfall.series(f"{run}/checkpoint-*", store=store, **CHEAP)
    assert counted == ["checkpoint-10", "checkpoint-30"]
    assert [one.record["depth"] for one in after.models] == [one.record["depth"] for one in whole.models]
    assert after.verdict == whole.verdict


def test_one_bad_checkpoint_does_not_end_the_series(run: Path, tmp_path: Path) -> None:
    bad = tmp_path / "checkpoint-5"
    shutil.copytree(run / "checkpoint-2", bad)
    weights = bad / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-64])
    names = [run / "checkpoint-0", bad, run / "checkpoint-10"]
    found = rankfall.series(names, store=tmp_path / "audits", **CHEAP)
    assert [one.record is not None for one in found.models] == [True, False, True]
    assert list(found.failed) == ["checkpoint-5"]
    assert "truncated" in found.failed["checkpoint-5"]
    assert found.verdict.reasons[-1].topic == "not audited"
    assert found.record()["checkpoints"][1]["reason"] == found.failed["checkpoint-5"]
    assert len(found.tables()["depth"]) == 8
    # What is bad is not kept: mended, it is audited.
    shutil.copy(run / "checkpoint-2" / "model.safetensors", weights)
    assert rankfall.series(names, store=tmp_path / "audits", **CHEAP).failed == {}
    with pytest.raises(RequestError, match="at least one model that can be audited; got 1 that cannot"):
        rankfall.series([tmp_path / "no" / "such" / "folder"], store=tmp_path / "audits", **CHEAP)


def test_a_checkpoint_that_changes_meanwhile_is_not_kept(run: Path, tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "checkpoint-0"
    shutil.copytree(run / "checkpoint-0", folder)
    order = json.dumps({"name": str(folder), "options": {"tokens": 8}, "store": str(tmp_path / "audits")})
    audit = work.audit

    def meddling(*given: Any, **options: Any) -> Any:
        found = audit(*given, **options)
        shutil.copy(run / "checkpoint-2" / "model.safetensors", folder)
        return found

    meddling.__signature__ = inspect.signature(audit)  # type: ignore[attr-defined]
    monkeypatch.setattr(work, "audit", meddling)
    answer = json.loads(Job("0", "rankfall.models.series.work:audit_job", order).run())
    assert answer["ending"] == "failed"
    assert "changed while they were audited" in answer["reason"]
    assert Audits(tmp_path / "audits").ids() == []


def test_what_another_process_audits_is_waited_for(run: Path, tmp_path: Path, counted: list[str]) -> None:
    audits = Audits(tmp_path)
    options = {"tokens": 8}
    identity = identity_of(run / "checkpoint-0", settings_of(options), audits)
    order = json.dumps({"name": str(run / "checkpoint-0"), "options": options, "store": str(tmp_path)})
    with Claims(audits.claims_folder) as other:
        assert other.take(work.audit_id(identity))
        assert json.loads(work.audit_job(order))["ending"] == "busy"
    assert counted == []
    assert json.loads(work.audit_job(order))["ending"] == "finished"
    assert counted == ["checkpoint-0"]


def test_a_dead_owner_elsewhere_is_told_of_and_then_replaced(
    run: Path, whole: rankfall.SeriesResult, tmp_path: Path, counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of another machine holds the audit and falls silent while we wait for it."""
    name, folder = str(whole.models[0].id), Audits(tmp_path).claims_folder
    (folder / "owners").mkdir(parents=True)
    (folder / name).write_text("far-1")
    sign = folder / "owners" / "far-1"
    sign.write_text(json.dumps({"host": "far", "pid": 1, "started": "1"}))

    def pass_a_day(seconds: float) -> None:
        os.utime(sign, (1e9, 1e9))

    monkeypatch.setattr("rankfall.training.engines.jobs.time.sleep", pass_a_day)
    notes: list[str] = []
    found = rankfall.series([run / "checkpoint-0"], store=tmp_path, note=notes.append, **CHEAP)
    assert [one.stored for one in found.models] == [False]
    assert counted == ["checkpoint-0"]
    assert len(notes) == 2, notes
    assert notes[0].startswith("checkpoint-0: waiting for 1 audit claimed by process 1 on far since 2")
    assert "--take-over" not in notes[0]
    assert notes[1].startswith("process 1 on far gave no sign of life for ")
    assert notes[1].endswith("s; the audits that it had claimed are taken over")


def test_a_full_disk_ends_it(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rankfall.store.files import StorageError

    def full(*_: Any) -> None:
        raise StorageError(required="room on the disk", got="none", remedy="free some")

    monkeypatch.setattr(Audits, "write", full)
    with pytest.raises(RequestError, match="required room on the disk; got none; free some"):
        rankfall.series([run / "checkpoint-0"], store=tmp_path, **CHEAP)


def test_ctrl_c_ends_after_the_audit_at_hand(run: Path, tmp_path: Path, counted: list[str]) -> None:
    def interrupt(what: str, share: float) -> None:
        if "probing" in what:
            os.kill(os.getpid(), signal.SIGINT)

    told: list[str] = []
    store = tmp_path / "audits"
    found = rankfall.series(f"{run}/checkpoint-*", store=store, progress=interrupt, note=told.append, **CHEAP)
    assert not found.complete
    assert [one.record is not None for one in found.models] == [True, False, False, False]
    assert told == ["stopping after this checkpoint; Ctrl-C again to stop at once"]
    assert rankfall.series(f"{run}/checkpoint-*", store=store, **CHEAP).complete
    assert len(counted) == 4


def test_progress_names_the_checkpoint_and_goes_from_nothing_to_all(run: Path, tmp_path: Path) -> None:
    told: list[tuple[str, float]] = []
    names = [run / "checkpoint-0", run / "checkpoint-2"]
    rankfall.series(names, store=tmp_path, progress=lambda what, share: told.append((what, share)), **CHEAP)
    shares = [share for _, share in told]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert any(what.startswith("checkpoint-2: measuring") and 0.5 < share < 1 for what, share in told)


def test_models_of_different_depth_are_laid_over_each_other(run: Path, tmp_path: Path) -> None:
    deep = save_small(tmp_path / "deep", "gpt2", n_layer=5)
    found = rankfall.series([run / "checkpoint-0", deep], store=tmp_path / "audits", **CHEAP)
    reasons = {one.topic: one for one in found.verdict.reasons}
    assert reasons["depth"].numbers == {"layers": [3, 5]}
    assert "layers" not in reasons
    differences = found.tables()["differences"]
    assert differences["layer"].tolist() == [0, 1, 2, 3]
    assert differences["other_layer"].tolist() == [0, 2, 3, 5]
    assert "head_differences" not in found.tables()
    assert "do not correspond" in reasons["heads"].text
    found.plot()


def test_modules_in_memory_are_audited_and_not_kept(tmp_path: Path, monkeypatch) -> None:
    import torch
    from tests.models.small import small_model

    monkeypatch.chdir(tmp_path)
    ids = torch.randint(64, (1, 8), generator=torch.Generator().manual_seed(0))
    modules = [small_model("gpt2", seed) for seed in (0, 1)]
    found = rankfall.series(modules, inputs=ids)
    assert [one.label for one in found.models] == ["GPT2Model (A)", "GPT2Model (B)"]
    assert found.store is None
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RequestError, match="models by name, or modules in memory; got some of each"):
        rankfall.series([modules[0], "minilm"], inputs=ids)
    with pytest.raises(RequestError, match="models by name for another engine"):
        rankfall.series(modules, inputs=ids, engine="ray")
    with pytest.raises(RequestError, match="at least one model; got none"):
        rankfall.series([])
