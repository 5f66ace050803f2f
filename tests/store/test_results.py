"""Committed results: out of one store, into another, exactly, and never under a wrong name."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.store.conftest import Setting, write

from rankfall.errors import RequestError
from rankfall.store.files import from_csv, to_csv
from rankfall.store.identity import settings as identity_settings
from rankfall.store.results import export_results, import_results
from rankfall.store.store import Store

plain = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.text(max_size=6)


@given(st.lists(st.fixed_dictionaries({"a": plain, "b": plain}), min_size=1, max_size=4))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_plain_text_keeps_every_value_and_its_type(records: list[dict[str, object]]) -> None:
    again = from_csv(to_csv(records))
    assert again == records
    for new, old in zip(again, records, strict=True):
        assert {key: type(value) for key, value in new.items()} == {key: type(value) for key, value in old.items()}


def complete(setting: Setting) -> dict[str, object]:
    config = {"name": setting.name, "size": setting.size, "rate": setting.rate, "extra": setting.extra}
    return {"status": "done", **config, "error": setting.size / 7}


@pytest.fixture
def exported(store: Store, tmp_path: Path) -> Path:
    for size in (1, 2):
        write(store, Setting(size=size), summary=complete(Setting(size=size)))
    gpu = {"hardware": "Some CPU, 16 cores, NVIDIA H200", "date": "2026-01-03", "commit": "def"}
    write(store, Setting(size=3), summary=complete(Setting(size=3)), environment=gpu)
    export_results(store.runs(), tmp_path / "results")
    return tmp_path / "results"


def test_results_are_named_by_hardware_and_date(exported: Path) -> None:
    assert sorted(path.name for path in exported.iterdir()) == [
        "h200-2026-01-03.csv",
        "h200-2026-01-03.json",
        "some-2026-01-02.csv",
        "some-2026-01-02.json",
    ]
    notes = json.loads((exported / "h200-2026-01-03.json").read_text())
    assert notes["environments"][0]["commit"] == "def"


def test_a_store_goes_on_from_committed_results(store: Store, exported: Path, tmp_path: Path) -> None:
    other = Store(tmp_path / "other")
    wanted = [Setting(size=size) for size in (1, 2, 3, 4)]
    assert len(import_results(other, exported)) == 3
    assert other.missing(wanted) == wanted[3:]
    assert other.missing(wanted, parts=("weights.safetensors",)) == wanted
    for setting in wanted[:3]:
        assert other.run(setting).summary() == store.run(setting).summary()
        assert other.run(setting).environment == store.run(setting).environment
        assert other.run(setting).manifest.source == "imported"
    assert import_results(other, exported) == [], "a second import adds nothing"
    with pytest.raises(RequestError, match=r"to hold weights.safetensors; got a run that was imported"):
        other.run(wanted[0]).weights()


def test_exporting_again_adds_without_changing_what_is_there(store: Store, exported: Path) -> None:
    page = exported / "some-2026-01-02.csv"
    before = page.read_text().splitlines()
    write(store, Setting(size=5), summary=complete(Setting(size=5)))
    export_results(store.runs(), exported)
    after = page.read_text().splitlines()
    assert set(before) < set(after)
    assert len(after) == len(before) + 1


def test_settings_that_only_some_lines_have(store: Store, exported: Path, tmp_path: Path) -> None:
    """A setting added later is absent from older lines, and from new ones that have it at its default."""

    @dataclasses.dataclass(frozen=True)
    class Later(Setting):
        start: str = dataclasses.field(default="apart", metadata={"later": True})

    wanted = [Setting(size=1), Later(size=6), Later(size=7, start="copies"), Later(size=8, start="copies")]
    for setting in wanted[1:3]:
        write(store, setting, summary={**complete(setting), **identity_settings(setting)})
    export_results(store.runs(), exported)
    write(store, wanted[3], summary={**complete(wanted[3]), **identity_settings(wanted[3])})
    export_results(store.runs(), exported)
    other = Store(tmp_path / "other")
    import_results(other, exported)
    assert other.missing(wanted) == []
    for setting in wanted:
        assert other.run(setting).summary() == store.run(setting).summary()


def test_a_column_that_is_a_setting_of_some_cells_and_a_result_of_others(
    store: Store, exported: Path, tmp_path: Path
) -> None:
    """As the number of heads is: both kinds come back under their own names, also when one is exported later."""

    @dataclasses.dataclass(frozen=True)
    class Other:
        heads: int

    here = {"environment": store.run(Setting(size=1)).environment}
    wanted = [Setting(size=1), Setting(size=6), Setting(size=7), Other(2), Other(3)]
    write(store, wanted[1], summary={**complete(wanted[1]), "heads": 4}, **here)
    export_results(store.runs(), exported)
    for one in wanted[3:]:
        store.write(one, summary={"status": "done", "heads": one.heads}, **here)
    export_results(store.runs(), exported)
    write(store, wanted[2], summary={**complete(wanted[2]), "heads": 4}, **here)
    written = [path.name for path in export_results(store.runs(), exported) if path.suffix == ".csv"]
    assert written == ["h200-2026-01-03.csv", "some-2026-01-02.csv", "some-2026-01-02-2.csv"]
    other = Store(tmp_path / "other")
    assert len(import_results(other, exported)) == 7
    assert other.missing(wanted) == []
    for one in wanted[1:]:
        assert other.run(one).summary() == store.run(one).summary()


def test_an_edited_line_is_refused(exported: Path, tmp_path: Path) -> None:
    page = exported / "h200-2026-01-03.csv"
    page.write_text(page.read_text().replace(",0.01,", ",0.02,"))
    with pytest.raises(RequestError, match=r"each line of .* to hash to its id"):
        import_results(Store(tmp_path / "other"), page)


def test_what_is_no_result_is_refused(exported: Path, tmp_path: Path) -> None:
    other = Store(tmp_path / "other")
    with pytest.raises(RequestError, match="no such file or folder"):
        import_results(other, tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RequestError, match="a CSV file and a JSON file of the same name; got none"):
        import_results(other, tmp_path / "empty")
    (exported / "h200-2026-01-03.json").write_text("{}")
    with pytest.raises(RequestError, match="got KeyError: 'config'; restore both"):
        import_results(other, exported / "h200-2026-01-03.csv")


WAYS = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "empty": lambda path: path.write_bytes(b""),
    "random bytes": lambda path: path.write_bytes(bytes(range(255, 0, -1))),
    "a list": lambda path: path.write_text("[1, 2]"),
    "an object": lambda path: path.write_text('{"config": 1, "environments": 2}'),
    "other types": lambda path: path.write_text('{"config": [1], "environments": [1], "optional": 3}'),
    "encoding": lambda path: path.write_bytes("id,ü\n1,2".encode("utf-16")),
    "not a number": lambda path: path.write_text("id,environment,rate\nx,0,NaN\n"),
    "too many columns": lambda path: path.write_text("id,environment\nx,0,1,2\n"),
    "folder": lambda path: (path.unlink(), path.mkdir()),
    "unreadable": lambda path: (path.unlink(), path.symlink_to(path.name)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ending", [".csv", ".json"])
def test_damaged_results_are_refused_by_name_and_left_alone(
    store: Store, exported: Path, tmp_path: Path, ending: str, way: str
) -> None:
    page = exported / "h200-2026-01-03.csv"
    damaged = page.with_suffix(ending)
    WAYS[way](damaged)
    before = damaged.read_bytes() if damaged.is_file() else None
    with pytest.raises(RequestError, match=r"h200-2026-01-03.csv|CSV file and a JSON file|no such file"):
        import_results(Store(tmp_path / "other"), page)
    if not damaged.is_symlink():
        with pytest.raises(RequestError, match=r"h200-2026-01-03.csv"):
            export_results(store.runs(), exported)
    assert (damaged.read_bytes() if damaged.is_file() else None) == before


@pytest.mark.parametrize("damaged", ["h200-2026-01-03.csv", "h200-2026-01-03.json"])
@pytest.mark.parametrize("by", ["pipe", "device", "size"])
def test_results_are_plain_files_of_bounded_size(store: Store, exported: Path, damaged: str, by: str) -> None:
    path = exported / damaged
    if by == "size":
        with path.open("r+b") as file:
            file.truncate(1 << 40)
    else:
        path.unlink()
        os.mkfifo(path) if by == "pipe" else path.symlink_to("/dev/zero")
    with pytest.raises(RequestError, match=r"h200-2026-01-03\.csv and its JSON file as `rankfall runs"):
        import_results(store, exported)
    with pytest.raises(RequestError, match=r"h200-2026-01-03\.csv and its JSON file as `rankfall runs"):
        export_results(store.runs(), exported)
