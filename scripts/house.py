"""Measures the package's structure: `make house`.

An arrow goes from a folder to each folder that its modules import from; a package's `__init__`, which only re-exports,
has none. Two folders that import each other form a circle, unless one contains the other.
"""

import ast
import collections
import io
import tokenize
from pathlib import Path

import grimp

from scripts import draw_pictures

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "tfx_tpu_trainer"


def files() -> list[Path]:
    """Returns the package's files, except templates."""
    found = sorted(PACKAGE.rglob("*.py"))
    return [path for path in found if "templates" not in path.relative_to(PACKAGE).parts]


def arrows() -> dict[tuple[str, str], list[str]]:
    """Returns the imports between two folders, as `module -> module`."""
    graph = grimp.build_graph(PACKAGE.name, cache_dir=None)
    packages = {module for module in graph.modules if graph.find_children(module)}
    found: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
    for module in sorted(graph.modules - packages):
        here = module.rpartition(".")[0]
        for target in sorted(graph.find_modules_directly_imported_by(module)):
            there = target if target in packages else target.rpartition(".")[0]
            if here != there:
                found[_short(here), _short(there)].append(f"{_short(module)} -> {_short(target)}")
    return found


def circles() -> dict[tuple[str, str], list[str]]:
    """Returns folders that import each other, neither inside the other, with the imports of the rarer direction."""
    found = arrows()
    return {
        (one, other): min(found[one, other], found[other, one], key=len)
        for one, other in found
        if one < other and (other, one) in found and not f"{other}.".startswith(f"{one}.")
    }


def upward() -> list[str]:
    """Returns a wing's imports from wings on its own level or above."""
    rows = draw_pictures.rows_of(draw_pictures.contracts())[""]
    level = {wing: -number for number, wings in enumerate(rows) for wing in wings}
    return [
        each
        for (here, there), imports in arrows().items()
        for one, other in [(here.partition(".")[0], there.partition(".")[0])]
        if one != other and one in level and other in level and level[one] <= level[other]
        for each in imports
    ]


def _short(module: str) -> str:
    return module.removeprefix(PACKAGE.name).removeprefix(".")


def _lines(source: str) -> collections.Counter[str]:
    """Counts a file's lines: total, imports, docstrings, comments and code."""
    imports, docstrings = set[int](), set[int]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports.update(_numbers(node))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if ast.get_docstring(node) is not None and isinstance(first, ast.Expr):
                docstrings.update(_numbers(first))
    comments = {
        token.start[0]
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    lines = source.splitlines()
    code = [
        number
        for number, line in enumerate(lines, start=1)
        if line.strip() and not line.lstrip().startswith("#") and number not in docstrings
    ]
    return collections.Counter(
        lines=len(lines),
        imports=len(imports),
        docstrings=len(docstrings),
        comments=len(comments),
        code=len(code),
    )


def _numbers(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def main() -> None:
    """Prints the counts, and the imports of each circle and upward arrow."""
    counts: collections.Counter[str] = collections.Counter()
    paths = files()
    top = {path.relative_to(PACKAGE).parts[0] for path in paths}
    for path in paths:
        counts.update(_lines(path.read_text(encoding="utf-8")))
    tests = sorted((ROOT / "tests").rglob("*.py"))
    test_lines = sum(path.read_text(encoding="utf-8").count("\n") for path in tests)
    lines = counts["lines"]
    for name, value in [
        ("entries at the top", f"{len(top)}"),
        ("folders that import each other", f"{len(circles())}"),
        ("upward imports", f"{len(upward())}"),
        ("files", f"{len(paths)}"),
        ("lines", f"{lines:,}, {lines / len(paths):.0f} a file"),
        ("code", f"{counts['code']:,}"),
        ("docstrings", f"{counts['docstrings']:,} ({counts['docstrings'] / lines:.1%})"),
        ("imports", f"{counts['imports']:,} ({counts['imports'] / lines:.1%})"),
        ("comments", f"{counts['comments']:,} ({counts['comments'] / lines:.1%})"),
        ("test files", f"{len(tests)}"),
        ("lines of tests", f"{test_lines:,}"),
    ]:
        print(f"{name:32}{value}")
    for (one, other), imports in circles().items():
        print(f"{one} and {other} import each other:", *sorted(set(imports)), sep="\n  ")
    for each in upward():
        print("upward:", each)


if __name__ == "__main__":
    main()
