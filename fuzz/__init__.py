"""Random inputs, each judged by one rule: a result or one line, never a crash, a hang or half a JSON object."""
