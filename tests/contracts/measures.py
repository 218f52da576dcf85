"""Measures of how readable the package is; test_measures.py holds them to their aims.

python tests/contracts/measures.py          every measure, and the names that stand in two modules
"""

import ast
import io
import statistics
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "equipoise"
WIDEST = 100
Function = ast.FunctionDef | ast.AsyncFunctionDef


def modules(package: Path = PACKAGE) -> dict[str, str]:
    """The text of every module, by its path below the package."""
    return {
        str(path.relative_to(package)): path.read_text(encoding="utf-8")
        for path in sorted(package.rglob("*.py"))
    }


def functions(texts: dict[str, str]) -> list[Function]:
    return [
        node
        for text in texts.values()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, Function)
    ]


def top_level_names(text: str) -> Iterator[str]:
    """Functions, classes and constants that a module defines; dunders are left out."""
    for node in ast.parse(text).body:
        if isinstance(node, Function | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names = [node.target.id]
        else:
            continue
        yield from (name for name in names if not name.startswith("__"))


def shared_names(texts: dict[str, str]) -> dict[str, list[str]]:
    """Top-level names that stand in two or more modules, a leading underscore left out."""
    homes: dict[str, set[str]] = defaultdict(set)
    for module, text in texts.items():
        for name in top_level_names(text):
            homes[name.lstrip("_")].add(module)
    return {name: sorted(found) for name, found in homes.items() if len(found) > 1}


def share_of_shared_names(texts: dict[str, str]) -> float:
    names = {name.lstrip("_") for text in texts.values() for name in top_level_names(text)}
    return len(shared_names(texts)) / len(names)


def share_of_one_word_functions(texts: dict[str, str]) -> float:
    found = [node.name for node in functions(texts) if not node.name.startswith("__")]
    return sum("_" not in name.strip("_") for name in found) / len(found)


def share_of_long_lines(texts: dict[str, str]) -> float:
    lines = [line for text in texts.values() for line in text.splitlines()]
    return sum(len(line) > WIDEST for line in lines) / len(lines)


def share_of_prose(texts: dict[str, str]) -> float:
    """Lines of comments and docstrings among all lines that are not empty."""
    prose = total = 0
    for text in texts.values():
        total += sum(bool(line.strip()) for line in text.splitlines())
        lines: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            alone = token.line.strip().startswith(("#", '"""', 'r"""'))
            if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and alone):
                lines |= set(range(token.start[0], token.end[0] + 1))
        prose += sum(bool(text.splitlines()[line - 1].strip()) for line in lines)
    return prose / total


def untyped_signatures(texts: dict[str, str]) -> int:
    """Functions with dict[str, Any] in their signature: rows whose keys no type knows."""
    return sum(
        "dict[str, Any]" in ast.unparse(node.args) + ast.unparse(node.returns or ast.Constant(None))
        for node in functions(texts)
    )


def function_lines(texts: dict[str, str]) -> list[int]:
    """Lines of each function without its docstring."""
    found = []
    for node in functions(texts):
        docstring = ast.get_docstring(node, clean=False)
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        found.append(lines - (docstring.count("\n") + 1 if docstring else 0))
    return sorted(found)


def file_lines(texts: dict[str, str]) -> list[int]:
    return sorted(text.count("\n") for text in texts.values())


def main() -> None:
    texts = modules()
    sizes, files = function_lines(texts), file_lines(texts)
    print(f"file lines, median / max         {statistics.median(files):.0f} / {files[-1]}")
    long = sizes[len(sizes) * 9 // 10]
    print(f"function lines, median / p90     {statistics.median(sizes):.0f} / {long}")
    print(f"names in two or more modules     {share_of_shared_names(texts):.1%}")
    print(f"functions named by one word      {share_of_one_word_functions(texts):.1%}")
    print(f"lines over {WIDEST} characters         {share_of_long_lines(texts):.2%}")
    print(f"comments and docstrings          {share_of_prose(texts):.1%}")
    print(f"dict[str, Any] in a signature    {untyped_signatures(texts)}")
    for name, found in sorted(shared_names(texts).items()):
        print(f"  {name}: {', '.join(found)}")


if __name__ == "__main__":
    main()
