"""Run as a program of its own: the tensors of one pickled file, written as safetensors.

Nothing of rankfall is imported here. The file is read by torch's restricted unpickler, which builds tensors and plain
containers and calls nothing else; memory and time are limited, and a hook refuses what a payload would want:
programs, sockets, and changes to files. Whatever is not a table of tensors is refused. The answer is one line of
JSON.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any

FORBIDDEN = (
    "socket.", "subprocess.", "shutil.", "ctypes.", "ftplib.", "urllib.", "os.system", "os.exec", "os.fork",
    "os.posix_spawn", "os.spawn", "os.startfile", "os.mkdir", "os.rmdir", "os.remove", "os.rename", "os.link",
    "os.symlink", "os.truncate", "os.chmod", "os.chown", "os.putenv", "os.kill", "pty.",
)  # fmt: skip
# Under which a training script keeps the weights among other things.
NESTED = ("state_dict", "model_state_dict", "model", "module")


class RefusedFileError(Exception):
    """The file is not what was asked for; the text says why."""


def main() -> None:
    """Arguments: one JSON object with `path`, `out`, `memory`, `seconds` and `modules` (where packages are)."""
    asked = json.loads(sys.argv[1])
    sys.path[:] = asked["modules"]
    try:
        import torch
        from safetensors.torch import save_file

        torch.set_num_threads(1)
        _confine(asked["memory"], asked["seconds"])
        loaded = torch.load(asked["path"], map_location="cpu", weights_only=True)
        tensors = tensors_of(loaded, limit=2 * os.path.getsize(asked["path"]) + (1 << 20))
        save_file(tensors, asked["out"], {"format": "pt"})
        answer = {"tensors": str(len(tensors))}
    except RefusedFileError as refusal:
        answer = {"refused": str(refusal)}
    except MemoryError:
        answer = {"refused": "more memory asked for than the file can hold"}
    except BaseException as error:
        answer = {"refused": why_not(error)}
    print(json.dumps(answer))


def why_not(error: BaseException) -> str:
    """Why the file could not be read, in words of ours: torch's advise to read it without safety."""
    text = " ".join(str(error).split())
    if type(error).__name__ != "UnpicklingError":
        return f"{type(error).__name__}: {text[:200]}"
    asked = re.search(r"GLOBAL ([\w.]{1,80})", text)
    return (
        f"a pickled {asked[1]}, which is no tensor" if asked else "a pickled object that is no tensor, or is damaged"
    )


def _confine(memory: int, seconds: int) -> None:
    try:
        import resource
    except ImportError:
        return
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[5]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_DATA, (used + memory, used + memory))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.addaudithook(_refuse)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event.startswith(FORBIDDEN):
        raise RefusedFileError(f"the file asks for {event}, which no weights need; do not trust it")


def tensors_of(loaded: Any, limit: int) -> dict[str, Any]:
    """The table of tensors in what was unpickled, each with memory of its own; at most `limit` bytes of them."""
    import torch

    table = loaded
    for _ in range(3):
        if isinstance(table, dict) and not any(isinstance(value, torch.Tensor) for value in table.values()):
            table = next((table[name] for name in NESTED if isinstance(table.get(name), dict)), table)
    if not isinstance(table, dict) or not table:
        raise RefusedFileError(f"a {type(loaded).__name__} where a table of tensors is wanted")
    total = 0
    for name, value in table.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise RefusedFileError(f"{str(name)[:80]!r}, a {type(value).__name__}, where only tensors are wanted")
        if value.layout != torch.strided or value.is_quantized or value.dtype.is_complex:
            raise RefusedFileError(f"{name[:80]!r}, a tensor that is sparse, quantised or complex")
        total += value.numel() * value.element_size()
        if total > limit:
            raise RefusedFileError("tensors that are larger than the file")
    return {name: value.detach().clone().contiguous() for name, value in table.items()}


if __name__ == "__main__":
    main()
