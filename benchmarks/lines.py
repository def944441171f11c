"""How long the library is: code lines (not blank, import, comment or docstring) and all lines, by room."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1] / "eagle3lib"
SCOPES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(text: str) -> int:
    tree = ast.parse(text)
    left_out: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            left_out.update(range(node.lineno, node.end_lineno + 1))
        elif isinstance(node, SCOPES) and ast.get_docstring(node, clean=False) is not None:
            left_out.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(1 for n, line in lines if line.strip() and not line.strip().startswith("#") and n not in left_out)


def main() -> None:
    code, lines = Counter(), Counter()
    for path in sorted(ROOT.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        inside = path.relative_to(ROOT).parts
        for room in (inside[0] if len(inside) > 1 else ".", "all"):
            code[room] += code_lines(text)
            lines[room] += len(text.splitlines())
    for room in sorted(code, key=lambda name: (name == "all", name)):
        print(f"{room:10} {code[room]:6,} lines of code  {lines[room]:6,} lines")


if __name__ == "__main__":
    main()
