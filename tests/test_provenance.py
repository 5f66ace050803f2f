"""Where numbers came from, and what the package asks to be installed."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import rankfall

ROOT = Path(__file__).parents[1]
SOURCE = Path(rankfall.__file__).parent
ASK = "from rankfall.provenance import commit; print(commit())"


def test_a_package_inside_another_repository_has_no_commit(tmp_path: Path) -> None:
    """Copied into somebody's repository, untracked there, as an environment inside a project is."""
    for name in ("__init__.py", "provenance.py"):
        (tmp_path / "venv" / "rankfall").mkdir(parents=True, exist_ok=True)
        shutil.copy(SOURCE / name, tmp_path / "venv" / "rankfall" / name)
    (tmp_path / "theirs.txt").write_text("x")

    def git(*words: str) -> str:
        named = ("-c", "user.name=a", "-c", "user.email=a@b")
        return subprocess.run(
            ["git", *named, *words], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout

    def asked() -> str:
        environment = {"PYTHONPATH": str(tmp_path / "venv"), "PATH": "/usr/bin:/bin:/usr/local/bin"}
        done = subprocess.run(
            [sys.executable, "-c", ASK], env=environment, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    git("init", "-q")
    git("add", "theirs.txt")
    git("commit", "-qm", "theirs")
    assert asked() == "None"
    git("add", "venv")
    git("commit", "-qm", "ours")
    assert asked() == git("rev-parse", "--short=12", "HEAD").strip()


def imported() -> set[str]:
    """Top-level names of everything that any module imports, inside functions too."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {one.name.partition(".")[0] for one in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                found.add(node.module.partition(".")[0])
    return found - {*sys.stdlib_module_names, "rankfall"}


def test_what_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for name in ("app", "cluster", "train") for line in extras[name])]
    # Triton comes with torch where there is a GPU; the code asks before it uses it.
    declared = {line.split(">")[0].split("[")[0].lower().replace("_", "-") for line in lines} | {"triton"}
    distributions = packages_distributions()
    missing = {
        name: distributions.get(name, [])
        for name in imported()
        if not declared & {one.lower().replace("_", "-") for one in [*distributions.get(name, []), name]}
    }
    assert missing == {}
