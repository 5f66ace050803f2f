"""Hub ids and snapshot folders, from a cache made here; nothing is fetched unless that was allowed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from tests.calls import refused
from tests.models.small import save_small

from rankfall.errors import RequestError
from rankfall.models.load.hub import HubName, parse_hub_name
from rankfall.models.load.open import open_model

COMMITS = {"main": "a" * 40, "step1000": "b" * 40}


def fill(cache: Path, name: str, model: Path, ref: str = "main") -> Path:
    """What a download leaves: blobs, a snapshot of links to them, and the name of the revision."""
    repository = cache / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / COMMITS[ref]
    for folder in (snapshot, repository / "blobs", repository / "refs"):
        folder.mkdir(parents=True, exist_ok=True)
    (repository / "refs" / ref).write_text(COMMITS[ref])
    for path in model.iterdir():
        blob = repository / "blobs" / f"{ref}-{path.name}-blob"
        shutil.copy(path, blob)
        (snapshot / path.name).symlink_to(Path("../../blobs") / blob.name)
    return snapshot


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "hub"


@pytest.fixture(scope="module")
def two_and_three(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("models")
    return save_small(folder / "two", num_hidden_layers=2), save_small(folder / "three")


def layers(name: str, **options: Any) -> int:
    return int(open_model(name, **options).network.config.num_hidden_layers)


def test_a_snapshot_folder_opens_by_its_path(cache: Path, two_and_three: tuple[Path, Path]) -> None:
    snapshot = fill(cache, "org/small", two_and_three[1])
    assert (snapshot / "model.safetensors").is_symlink()
    assert open_model(snapshot).tokenizer is not None


def test_a_repository_folder_opens_its_main_branch_or_its_only_snapshot(
    cache: Path, two_and_three: tuple[Path, Path]
) -> None:
    repository = fill(cache, "org/small", two_and_three[0], ref="step1000").parents[1]
    assert layers(str(repository)) == 2
    fill(cache, "org/small", two_and_three[1])
    assert layers(str(repository)) == 3
    (repository / "refs" / "main").unlink()
    with pytest.raises(RequestError, match="got 2 snapshots, none of them of main; name the folder of one"):
        open_model(repository)


def test_a_link_that_leads_out_of_the_repository_says_so(cache: Path, two_and_three: tuple[Path, Path]) -> None:
    snapshot = fill(cache, "org/small", two_and_three[1])
    outside = two_and_three[0] / "model.safetensors"
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to(outside)
    with pytest.raises(RequestError, match=f"a link that leads outside to {outside}; if that is meant") as caught:
        open_model(snapshot)
    assert "trust" not in str(caught.value)


def test_ids_with_and_without_an_organisation(cache: Path, two_and_three: tuple[Path, Path]) -> None:
    fill(cache, "gpt-small", two_and_three[0])
    fill(cache, "org/small", two_and_three[1])
    assert layers("gpt-small") == 2
    assert layers("org/small") == 3
    assert open_model("gpt-small").source == "hub id gpt-small"


def test_revisions(cache: Path, two_and_three: tuple[Path, Path]) -> None:
    fill(cache, "org/small", two_and_three[1])
    fill(cache, "org/small", two_and_three[0], ref="step1000")
    assert layers("org/small") == 3
    assert layers("org/small@step1000") == 2
    assert layers("org/small", revision="step1000") == 2
    assert layers(f"org/small@{COMMITS['step1000']}") == 2
    assert open_model("org/small", revision="step1000").name == "org/small@step1000"
    with pytest.raises(
        RequestError, match="org/small@step7 in the local hub cache; got the revisions main, step1000"
    ):
        open_model("org/small@step7")
    with pytest.raises(RequestError, match="one revision; got step1000 and main"):
        open_model("org/small@step1000", revision="main")


def test_a_folder_has_no_revision(two_and_three: tuple[Path, Path]) -> None:
    with pytest.raises(RequestError, match="a hub id for the revision"):
        open_model(two_and_three[0], revision="main")


def test_what_is_not_in_the_cache_says_how_to_get_it(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "audit", "bert-base-uncased", "--revision", "main")
    assert "bert-base-uncased@main in the local hub cache; got not there; add --allow-download" in said


@pytest.mark.parametrize(
    ("text", "name", "revision"),
    [
        ("gpt2", "gpt2", None),
        ("org/name", "org/name", None),
        ("org/name@step-1000", "org/name", "step-1000"),
        ("gpt2@refs/pr/4", "gpt2", "refs/pr/4"),
    ],
)
def test_spellings(text: str, name: str, revision: str | None) -> None:
    assert parse_hub_name(text) == HubName(name, revision)


@pytest.mark.parametrize("text", ["../x", "a/b/c", "a b", "org/../x", "x@", "@main", "org/name@../x", "-x", ""])
def test_what_is_no_id(text: str) -> None:
    assert parse_hub_name(text) is None


class FakeHub:
    """The hub's two functions that a download uses."""

    def __init__(self, files: dict[str, int], folder: Path) -> None:
        self.files, self.folder = files, folder
        self.asked: list[Any] = []

    def model_info(self, name: str, *, revision: str | None, files_metadata: bool) -> Any:
        kind = type("Sibling", (), {})
        siblings = []
        for file, size in self.files.items():
            one = kind()
            one.rfilename, one.size = file, size
            siblings.append(one)
        return type("Info", (), {"siblings": siblings})()

    def snapshot_download(self, name: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        self.asked.append((name, revision, "pytorch_model*.bin" in allow_patterns))
        return str(self.folder)


@pytest.mark.parametrize(
    ("files", "pickled"),
    [({"model.safetensors": 5, "pytorch_model.bin": 5}, False), ({"pytorch_model.bin": 5}, True)],
)
def test_downloads_take_pickles_only_where_there_is_nothing_else(
    cache: Path,
    two_and_three: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    files: dict[str, int],
    pickled: bool,
) -> None:
    hub = FakeHub(files, fill(cache, "org/small", two_and_three[0]))
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.snapshot_download)
    assert layers("org/small@step9", allow_download=True) == 2
    assert hub.asked == [("org/small", "step9", pickled)]


def test_a_download_that_is_too_large_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = FakeHub({"model.safetensors": 1 << 40}, cache)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    with pytest.raises(RequestError, match=r"at most 20 GiB; got 1 files, 1024.0 GiB"):
        open_model("org/small", allow_download=True)
    assert hub.asked == []
