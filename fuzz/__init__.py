"""Random inputs of every kind, each judged by one rule: a result or one line, never a crash, a hang or half a JSON."""
