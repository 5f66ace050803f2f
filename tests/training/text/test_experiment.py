"""The experiment on text: packages made here stand for Debian's, a processor for the GPU."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path
from types import ModuleType

import pytest
from tests.loading import loaded

from rankfall.training.grid import read_grid
from rankfall.training.text.cell import TextCell
from rankfall.training.text.corpus import prepare_corpus

ROOT = Path(__file__).parents[3]

# Seconds since 1970, in the year 2286.
FAR_AWAY = 1e10


def packed(files: dict[str, bytes], mode: str = "w:xz") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def debian(files: dict[str, bytes]) -> bytes:
    """An ar archive as dpkg-deb writes it: two small members of odd and even length, then the files."""
    parts = {"debian-binary": b"2.0\n", "control.tar.xz": b"odd", "data.tar.xz": packed(files)}
    out = b"!<arch>\n"
    for name, content in parts.items():
        out += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
        out += content + b"\n" * (len(content) % 2)
    return out


ENTRIES = b"".join(b"Word%d \\Word\\, n.\n   Its meaning, again and again.\n\n" % n for n in range(1000))
KERNEL = {
    "linux-6/fs/ext4/inode.c": b"int main(void);\n" * 200,
    "linux-6/mm/slab.h": b"struct slab;\n" * 200,
    "linux-6/fs/nls/table.c": b"0x00,\n",
    "linux-6/drivers/net/card.c": b"int card;\n",
    "linux-6/Documentation/mm/page.rst": b"Pages\n=====\n",
    "linux-6/Documentation/translations/it_IT/page.rst": b"Pagine\n",
    "linux-6/Documentation/mm/picture.svg": b"<svg/>",
}


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, str]:
    corpora = loaded("scripts/corpora.py")
    contents = {
        "DICTIONARY": debian({"./usr/share/dictd/gcide.dict.dz": gzip.compress(ENTRIES)}),
        "KERNEL": debian({"./usr/src/linux-source-6.tar.xz": packed(KERNEL)}),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        monkeypatch.setattr(corpora, name, corpora.Package(name, hashlib.sha256(content).hexdigest()))
    return corpora, tmp_path.as_uri()


def test_corpora_are_the_documents_of_the_packages(
    mirror: tuple[ModuleType, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpora, address = mirror
    (tmp_path / "texts" / "prose" / "left").mkdir(parents=True)
    assert corpora.main([str(tmp_path / "texts"), "--mirror", address, "--store", str(tmp_path / "runs")]) == 0
    pieces = sorted((tmp_path / "texts" / "prose" / "dictionary").iterdir())
    assert b"".join(piece.read_bytes() for piece in pieces) == ENTRIES
    assert len(pieces) > 2
    assert all(piece.read_bytes().startswith(b"Word") for piece in pieces)
    found = {str(path.relative_to(tmp_path / "texts")) for path in (tmp_path / "texts").rglob("*.[chr]*")}
    assert found == {"code/fs/ext4/inode.c", "code/mm/slab.h", "prose/Documentation/mm/page.rst"}
    assert not (tmp_path / "texts" / "prose" / "left").exists(), "what lay there before is gone"
    said = capsys.readouterr().out
    assert f"{len(pieces) + 1:,} documents" in said
    kept = {path.name for path in (tmp_path / "runs" / ".corpora").iterdir()}
    assert len(kept) == 2
    assert all(f"corpus {name}" in said for name in kept)


def test_a_package_that_changed_or_went_is_refused_in_one_line(
    mirror: tuple[ModuleType, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpora, address = mirror
    (tmp_path / "KERNEL").write_bytes(b"something else")
    assert corpora.main([str(tmp_path / "texts"), "--mirror", address]) == 2
    error = capsys.readouterr().err
    assert error.startswith("corpora: ")
    assert "SHA-256" in error
    assert error.count("\n") == 1
    (tmp_path / "DICTIONARY").unlink()
    assert corpora.main([str(tmp_path / "texts"), "--mirror", address]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "texts").exists()


def test_the_grid_keeps_its_budgets_equal() -> None:
    cells = [cell for cell in read_grid("text-rank") if isinstance(cell, TextCell)]
    shared = [cell for cell in cells if cell.heads * cell.rank == cell.width and "parameters" in cell.budget]
    assert {cell.rank for cell in shared} == {4, 8, 16, 32, 64, 128}
    assert {cell.width for cell in shared} == {128, 256, 512}
    for width, positions in ((128, "rotary"), (256, "rotary"), (512, "rotary"), (256, "learned")):
        own = [cell for cell in shared if (cell.width, cell.positions) == (width, positions)]
        assert len(own) >= 5
        assert len({cell.token_flops for cell in own}) == 1
    assert all(cell.heads * cell.value_rank == cell.width for cell in cells)


def test_the_driver_without_its_corpora_says_how_to_get_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--store", str(tmp_path / "runs"), "--out", str(tmp_path / "out"), "--seconds", "1"]
    assert loaded("scripts/text_rank.py").main(words) == 2
    error = capsys.readouterr().err
    assert "scripts/corpora.py --store" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_driver_trains_in_order_and_stops_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker in this process, so that nothing depends on how fast processes start."""
    driver = loaded("scripts/text_rank.py")
    (tmp_path / "book.txt").write_text("\n\n".join(f"{n} sheep and {n % 7} goats\n" * 9 for n in range(400)))
    about = prepare_corpus(tmp_path / "book.txt", "bytes", tmp_path / "runs").about
    grid = tmp_path / "grid.toml"
    grid.write_text(
        f'task = "text"\ncorpus = "{about.digest}"\nwidth = 8\nlayers = 1\nheads = 2\nfeed_forward = 16\n'
        "context = 16\nbatch = 2\nsteps = 100\n[[grid]]\nrank = 4\n[[grid]]\nrank = 2\n"
    )
    jobs = driver.jobs_in_order(str(grid), "cpu")
    assert [job.cells[0].rank for job in jobs] == [4, 2]
    monkeypatch.setattr(driver, "MARGIN", 0.0)
    driver._work(jobs[:1], tmp_path / "runs", FAR_AWAY, "cpu", None, 0)
    monkeypatch.setattr(driver, "MARGIN", 1e12)
    driver._work(jobs, tmp_path / "runs", FAR_AWAY, "cpu", None, 0)
    driver.Report(driver.Store(tmp_path / "runs"), tmp_path, set()).update()
    page = next(path for path in tmp_path.glob("*.csv") if path.stem != "histories")
    (row,) = csv.DictReader(page.read_text().splitlines())
    assert (row["rank"], row["status"]) == ("4", "done"), "the second would not have been done in time"
    assert float(row["token_rank_last"]) > 0
    (history,) = csv.DictReader((tmp_path / "histories.csv").read_text().splitlines())
    assert (history["id"], history["step"]) == (row["id"], "100")
    assert json.loads((tmp_path / "corpora.json").read_text())[about.digest]["training_tokens"] > 0
