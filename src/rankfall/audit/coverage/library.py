"""Every architecture in the installed library, and whether its own code uses the attention interface."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

from rankfall.audit.interface.modules import INTERFACE_NAMES
from rankfall.errors import require

Reach = Literal["interface", "bypasses", "no attention of its own"]

ATTENTION_CLASS = re.compile(r"^class \w*attention\w*\(", re.IGNORECASE | re.MULTILINE)


@final
@dataclass(frozen=True)
class Architecture:
    """One model type. `no attention of its own` covers those without attention and those made of other types."""

    model_type: str
    reach: Reach


def installed_architectures() -> list[Architecture]:
    """All model types, by name. Reads source files only: nothing is imported, built or run."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES, model_type_to_module_name

    root = Path(transformers.__file__).parent / "models"
    return [
        Architecture(model_type, _reach(root / model_type_to_module_name(model_type)))
        for model_type in sorted(CONFIG_MAPPING_NAMES)
    ]


def known_type(name: str) -> str:
    """The name, if the installed library has such a model type."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    near = difflib.get_close_matches(name, CONFIG_MAPPING_NAMES, n=3)
    require(
        name in CONFIG_MAPPING_NAMES,
        required="a model type of the installed library",
        got=name,
        remedy=f"near it are {', '.join(near)}" if near else "rankfall coverage lists them all",
    )
    return name


def _reach(folder: Path) -> Reach:
    source = "\n".join(path.read_text() for path in sorted(folder.glob("modeling_*.py")))
    if any(name in source for name in INTERFACE_NAMES):
        return "interface"
    return "bypasses" if ATTENTION_CLASS.search(source) else "no attention of its own"
