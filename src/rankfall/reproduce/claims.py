"""The page that leads from each statement to its code, its tests and its figures.

python -m rankfall.reproduce.claims > docs/claims.md
"""

from __future__ import annotations

from rankfall.reproduce.statements import ALL_STATEMENTS, PAPERS, Statement

HEAD = """# Statements, and where they are made concrete

Each statement of the two papers in our own words, the code that computes it, the tests that could refute it, and the
figures that show it. `python -m rankfall.reproduce.claims` writes this page; a test fails when it is out of date.
"""


def claims_page() -> str:
    """The whole page as Markdown."""
    parts = [HEAD]
    for letter, paper in PAPERS.items():
        rows = [_row(one) for one in ALL_STATEMENTS if one.id.startswith(f"{letter}-")]
        parts.append(f"\n## Paper {letter}\n\n{paper}\n")
        parts.append("| statement | says | code | tests | figures |\n|---|---|---|---|---|")
        parts += rows
        parts.append("")
    return "\n".join(parts)


def _row(one: Statement) -> str:
    code = ", ".join(f"`rankfall.{name}`" for name in one.code)
    tests = ", ".join(f"`tests/{name}`" for name in one.tests)
    figures = ", ".join(f"`{name}`" for name in one.figures) or "-"
    says = f"{one.says} *{one.note}*" if one.note else one.says
    return f"| {one.id} | {says} | {code} | {tests} | {figures} |"


if __name__ == "__main__":
    print(claims_page(), end="")
