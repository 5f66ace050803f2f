"""A configuration's identity: stable, sensitive to every field, indifferent to how it was written."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.store.conftest import Setting

from rankfall.errors import RequestError
from rankfall.store.identity import canonical, identity


def test_identity_is_fixed_for_all_time() -> None:
    assert canonical(Setting()) == '{"config":{"extra":null,"name":"small","rate":0.01,"size":4},"schema":1}'
    assert identity(Setting()) == "b7dfdd8eb10d35b9"


@given(st.text(max_size=5), st.integers(0, 9), st.floats(0, 1), st.none() | st.integers(0, 3))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_equal_configurations_and_only_they_share_an_identity(
    name: str, size: int, rate: float, extra: int | None
) -> None:
    setting = Setting(name, size, rate, extra)
    shuffled = dict(reversed([(key, value) for key, value in asdict(setting).items() if key != "added"]))
    assert identity(shuffled) == identity(setting)
    for change in ({"name": name + "x"}, {"size": size + 1}, {"rate": rate + 1}, {"extra": 7}):
        assert identity(replace(setting, **change)) != identity(setting)


def test_a_field_added_later_changes_nothing_at_its_default() -> None:
    @dataclass(frozen=True)
    class Older:
        name: str = "small"
        size: int = 4
        rate: float = 0.01
        extra: int | None = None

    assert identity(Setting()) == identity(Older())
    assert identity(Setting(added=True)) != identity(Older())


def test_only_plain_values_have_an_identity() -> None:
    with pytest.raises(RequestError, match="size to be text, a number"):
        identity({"size": [1, 2]})
    with pytest.raises(RequestError, match="a dataclass or a mapping"):
        identity(3)
    with pytest.raises(ValueError, match="not JSON compliant"):
        identity({"rate": float("nan")})
