"""Run as a program of its own: whether a tokenizer.json loads and reads a text within bounds of memory and time.

The tokenizers library ends its process when memory runs out, and tiny files can ask for any amount of it: a padding
to a billion tokens, a normaliser that makes each letter a thousand. Nothing of rankfall is imported here.
"""

from __future__ import annotations

import json
import sys


def main() -> None:
    """Arguments: one JSON object with `path`, `memory`, `seconds`, `most` (tokens) and `modules`; text on stdin."""
    asked = json.loads(sys.argv[1])
    sys.path[:] = asked["modules"]
    text = sys.stdin.read()
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (asked["memory"],) * 2)
        resource.setrlimit(resource.RLIMIT_CPU, (asked["seconds"],) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except ImportError:
        pass
    from tokenizers import Tokenizer

    try:
        made = len(Tokenizer.from_file(asked["path"]).encode(text).ids)
        answer = {} if made <= asked["most"] else {"refused": f"{made:,} tokens for {len(text):,} characters"}
    except BaseException as error:
        said = " ".join(str(error).split())
        answer = {"refused": f"{type(error).__name__}: {said[:160]}"}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
