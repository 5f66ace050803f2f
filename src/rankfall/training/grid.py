"""A grid file: TOML in which scalars are fixed, lists are crossed, and `[[grid]]` tables are united.

layers = 1                  # holds for every table below
rank = [1, 2, 4]            # three cells
[[grid]]
multiplier = 1
seed = [0, 1]               # times two
[[grid]]
multiplier = 8              # and three more
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import math
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import rankfall
from rankfall.errors import RequestError, require
from rankfall.training.cell import Cell
from rankfall.training.kinds import ALONE, CellKind, Surroundings, TrainingCell, kind_named, kind_of

TABLES = "grid"
MOST_CELLS = 100_000
MOST_BYTES = 1 << 20
"""Of a grid file."""


def read_points(path: Path | str) -> list[Cell]:
    """The cells of a grid file, all of which train encoders on points."""
    return [cell for cell in read_grid(path) if isinstance(cell, Cell)]


def read_grid(path: Path | str, around: Surroundings = ALONE) -> list[TrainingCell]:
    """The cells of a grid file, or of a shipped grid by its name, in the order in which the file spells them."""
    found = find_grid(path)
    size = found.stat().st_size
    require(size <= MOST_BYTES, required=f"a grid of at most {MOST_BYTES:,} bytes", got=size, remedy="split it")
    try:
        document = tomllib.loads(found.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise RequestError(
            required=f"TOML in {found}", got=str(error), remedy="lists are [1, 2], texts are quoted"
        ) from None
    return cells_of(document, str(found), around)


def find_grid(path: Path | str) -> Path:
    """The file itself, or the shipped grid of that name (`smoke` or `grids/smoke.toml`)."""
    given = Path(path)
    if given.is_file():
        return given
    shipped = {file.stem: file for file in shipped_grids()}
    if given.stem in shipped and given.parent in (Path(), Path("grids")) and given.suffix in ("", ".toml"):
        return shipped[given.stem]
    raise RequestError(
        required="a grid file",
        got=f"{given}, which is not there",
        remedy=f"write one, or name a shipped grid: {', '.join(shipped)}",
    )


def shipped_grids() -> list[Path]:
    """Grids that come with rankfall: inside the installed package, or at the root of a checkout."""
    package = Path(rankfall.__file__).parent
    for folder in (package / "grids", package.parents[1] / "grids"):
        if folder.is_dir():
            return sorted(folder.glob("*.toml"))
    return []


def chosen_cells(cells: Sequence[TrainingCell], conditions: Sequence[str]) -> list[TrainingCell]:
    """The cells that meet every condition; one is `key=value` or `key=value,value`, spelt as in a grid."""
    chosen = list(cells)
    for condition in conditions:
        key, equals, values = condition.partition("=")
        require(
            bool(equals and values),
            required="a condition such as layers=3 or rank=8,64",
            got=condition,
            remedy="name a key, an equals sign and the values to take",
        )
        _require_key(key, [name for name in kind_of(cells[0]).grid_keys if hasattr(cells[0], name)], "the condition")
        wanted = {_spelt(value) for value in values.split(",")}
        found = sorted({getattr(cell, key) for cell in cells}, key=lambda value: (value is None, value))
        for value in wanted - {_spelt(str(one)) for one in found}:
            raise RequestError(
                required=f"a value of {key} that the grid has: {', '.join(_spelt(str(one)) for one in found)}",
                got=value,
                remedy="choose among these",
            )
        chosen = [cell for cell in chosen if _spelt(str(getattr(cell, key))) in wanted]
    require(
        bool(chosen),
        required="cells that meet every condition",
        got=f"none of {len(cells)} with {' '.join(conditions)}",
        remedy="the grid has each value, but not together: drop a condition",
    )
    return chosen


def _spelt(value: str) -> str:
    """One spelling of equal values: 0.01 and 1e-2, 100_000 and 100000, None and none."""
    value = value.strip()
    try:
        return repr(float(value)).removesuffix(".0")
    except ValueError:
        return value.replace("None", "none")


def cells_of(document: Mapping[str, Any], file: str, around: Surroundings = ALONE) -> list[TrainingCell]:
    """The cells of a parsed grid; `file` is named in every error."""
    shared = {key: value for key, value in document.items() if key != TABLES}
    tables = document.get(TABLES, [{}])
    require(
        isinstance(tables, list) and all(isinstance(table, dict) for table in tables),
        required=f"[[{TABLES}]] tables in {file}",
        got=f"{TABLES} as {type(tables).__name__}",
        remedy="write [[grid]] with two brackets",
    )
    require(
        bool(shared) or any(tables),
        required=f"settings in {file}",
        got="an empty grid",
        remedy="name at least one, such as rank = [1, 2, 4]",
    )
    cells: list[TrainingCell] = []
    for number, table in enumerate(tables, start=1):
        place = file if TABLES not in document else f"{file}, [[{TABLES}]] {number}"
        cells += _crossed({**shared, **table}, place, around)
    require(bool(cells), required=f"cells in {file}", got="an empty grid", remedy="add a [[grid]] table")
    _require_distinct(cells, file)
    return cells


def _crossed(table: Mapping[str, Any], place: str, around: Surroundings) -> list[TrainingCell]:
    kind = _kind(table, place)
    keys = kind.grid_keys
    for key in table:
        _require_key(key, keys, place)
    axes = [[(key, choice) for choice in _choices(kind, key, value, place)] for key, value in table.items()]
    count = math.prod(map(len, axes))
    require(
        count <= MOST_CELLS,
        required=f"at most {MOST_CELLS:,} cells in {place}",
        got=f"{count:,}",
        remedy="shorten its lists",
    )
    return [_cell(kind, dict(choice), place, around) for choice in itertools.product(*axes)]


def _require_key(key: str, keys: Collection[str], place: str) -> None:
    close = difflib.get_close_matches(key, keys, n=1)
    require(
        key in keys,
        required=f"settings of a cell in {place}",
        got=f"the key {key}",
        remedy=f"did you mean {close[0]}?" if close else f"the keys are {', '.join(keys)}",
    )


def _kind(table: Mapping[str, Any], place: str) -> CellKind:
    """The kind of all cells of a table: its tasks must agree in it."""
    tasks = table.get("task")
    kinds = {kind_named({"task": task}) for task in (tasks if isinstance(tasks, list) and tasks else [tasks])}
    require(
        len(kinds) == 1,
        required=f"tasks of one kind in {place}",
        got="text beside other tasks",
        remedy="give text a [[grid]] table of its own",
    )
    return kinds.pop()


def _choices(kind: CellKind, key: str, value: Any, place: str) -> list[Any]:
    choices = value if isinstance(value, list) else [value]
    require(
        bool(choices),
        required=f"at least one value of {key} in {place}",
        got="an empty list",
        remedy="fill or drop it",
    )
    return [_typed(kind, key, choice, place) for choice in choices]


def _typed(kind: CellKind, key: str, value: Any, place: str) -> Any:
    """The value as the field wants it. TOML has no null, so the text "none" stands for it where a field allows it."""
    wanted = kind.grid_keys[key]
    if wanted.endswith("| None") and value == "none":
        return None
    if wanted.startswith("float") and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    require(
        type(value) is {"str": str, "int": int, "float": float, "bool": bool}[wanted.removesuffix(" | None")],
        required=f"{key} in {place} to be {wanted}",
        got=repr(value),
        remedy=f"the default is {getattr(kind.cell, key, 'none')!r}",
    )
    return value


def _cell(kind: CellKind, settings: dict[str, Any], place: str, around: Surroundings) -> TrainingCell:
    try:
        return kind.from_grid(settings, around)
    except RequestError as error:
        raise RequestError(required=f"{error.required} ({place})", got=error.got, remedy=error.remedy) from None


def _require_distinct(cells: Iterable[TrainingCell], file: str) -> None:
    seen: set[TrainingCell] = set()
    for cell in cells:
        if cell in seen:
            changed = {
                field.name: getattr(cell, field.name)
                for field in dataclasses.fields(cell)  # type: ignore[arg-type]
                if getattr(cell, field.name) != field.default
            }
            text = ", ".join(f"{key}={value}" for key, value in changed.items())
            raise RequestError(
                required=f"every cell of {file} once",
                got=f"twice the cell with {text or 'all defaults'}",
                remedy="take the doubled value or table out",
            )
        seen.add(cell)
