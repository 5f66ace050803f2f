"""The guide's code runs as it is printed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "monitor.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
# What the trainers themselves warn about on a machine without loggers and GPUs is not ours.
THEIRS = "ignore::UserWarning"


@pytest.mark.filterwarnings(THEIRS, "ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("block", BLOCKS, ids=["pytorch", "transformers", "lightning"])
def test_runs_and_logs(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if "transformers" in block:
        pytest.importorskip("accelerate")
    if "lightning" in block:
        pytest.importorskip("pytorch_lightning")
    # With marimo loaded, as other tests do, transformers takes itself to be in a notebook and looks for IPython.
    monkeypatch.delitem(sys.modules, "marimo", raising=False)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "guide"}
    exec(compile(block, str(GUIDE), "exec"), names)
    if "history" in names:
        said = capsys.readouterr().out
        assert said.startswith("10 ")
    elif "transformers" in block:
        logged = names["trainer"].state.log_history  # type: ignore[attr-defined]
        assert [row["step"] for row in logged if any("energy_rank" in name for name in row)] == [1, 6, 11]
    else:
        logged = "".join(path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file())
        assert "rankfall/layers.2/energy_rank" in logged
