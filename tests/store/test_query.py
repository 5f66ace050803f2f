"""Asking the store: conditions, SQL, and what SQL must not be able to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.store.conftest import Setting, write

from rankfall.errors import RequestError
from rankfall.store.query import rows_of, select, where
from rankfall.store.store import Store


@pytest.fixture
def filled(store: Store) -> Store:
    for size in (1, 2, 8):
        write(store, Setting(size=size))
    write(store, Setting(name="bare", size=9), history=None, weights=None, source="imported")
    return store


def sizes(rows: list[dict[str, object]]) -> set[object]:
    return {row["size"] for row in rows}


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ([], {1, 2, 8, 9}),
        (["size=8"], {8}),
        (["size != 8", "name=small"], {1, 2}),
        (["size>=2", "size<9"], {2, 8}),
        (["error>2.5"], {8, 9}),
        (["source=imported"], {9}),
        (["size=many"], set()),
    ],
)
def test_conditions(filled: Store, conditions: list[str], expected: set[int]) -> None:
    rows, damaged = rows_of(filled)
    assert damaged == []
    assert sizes(where(rows, conditions)) == expected


def test_none_and_truth_can_be_asked_for() -> None:
    rows = [{"a": None, "b": True}, {"a": 1, "b": False}]
    assert where(rows, ["a=none"]) == rows[:1]
    assert where(rows, ["a!=none"]) == rows[1:]
    assert where(rows, ["b=true"]) == rows[:1]


def test_wrong_conditions_are_refused(filled: Store) -> None:
    rows, _ = rows_of(filled)
    with pytest.raises(RequestError, match="a condition such as rank=8; got 'size 8'"):
        where(rows, ["size 8"])
    with pytest.raises(RequestError, match="got weight; the columns are id, status, name, size, error, source"):
        where(rows, ["weight=8"])


def test_sql_over_both_tables(filled: Store) -> None:
    assert select(filled, "select sum(size) as total from runs") == [{"total": 20}]
    assert select(filled, "select count(*) as n, min(loss) as least from history") == [{"n": 9, "least": 0.2}]
    joined = "select size, min(loss) as m from runs join history using (id) group by size order by size"
    assert [row["size"] for row in select(filled, joined)] == [1, 2, 8]
    assert {row["name"] for row in select(filled, "show tables")} == {"runs", "history"}


def test_sql_on_an_empty_store(store: Store) -> None:
    assert select(store, "select * from runs") == []


@pytest.mark.parametrize(
    "query",
    [
        "select * from '{file}'",
        "select * from read_csv('{file}')",
        "copy runs to '{target}'",
        "attach '{target}'",
        "set enable_external_access = true",
        "install httpfs",
        "select * from rows",
        "selekt",
        " ",
    ],
)
def test_sql_reaches_nothing_but_the_tables(filled: Store, tmp_path: Path, query: str) -> None:
    file, target = tmp_path / "secret.csv", tmp_path / "target"
    file.write_text("a\n1\n")
    with pytest.raises(RequestError, match="required SQL that DuckDB accepts") as refused:
        select(filled, query.format(file=file, target=target))
    assert "\n" not in str(refused.value)
    assert not target.exists()


def test_a_damaged_run_is_told_apart_from_the_sound_ones(filled: Store) -> None:
    path = filled.path / filled.run(Setting(size=2)).id / "summary.parquet"
    path.write_bytes(b"PAR1" + path.read_bytes()[4:][::-1])
    rows, damaged = rows_of(filled)
    assert sizes(rows) == {1, 8, 9}
    assert len(damaged) == 1
    assert str(path) in str(damaged[0])
    with pytest.raises(RequestError, match="another checksum"):
        select(filled, "select 1")


def test_a_question_starts_no_threads(filled: Store) -> None:
    """A thread for every core is more than a process with little address space survives."""
    assert select(filled, "select current_setting('threads') as n") == [{"n": 1}]
