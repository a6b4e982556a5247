"""
Count how large the project is, and compare the counts with `.ci/budget.toml`.

    python .ci/budget.py            prints a table; exit status 1 if a count exceeds its bound
    python .ci/budget.py PATH ...   "of" and "its" per 1,000 words, and lines over 110 characters, of these Python files

The counts depend on the checkout alone. Code lines are lines with a token of code: no comment, docstring or blank line.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BUDGET = Path(__file__).with_name("budget.toml")
SERVICE, PACKAGE, LAB = "service/", "service/tarsy_scoring/", "service/tarsy_scoring_lab/"
MATERIAL = (".yaml", ".yml", ".html", ".js", ".css", ".jinja", ".txt")
WIDTH = 110
# Imports inside functions are free here: a command starts with what it needs.
ON_DEMAND = (f"{PACKAGE}cli.py", f"{PACKAGE}commands/", f"{PACKAGE}studies/commands/", LAB)
BRANCHES = (
    ast.If,
    ast.IfExp,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.comprehension,
    ast.match_case,
)
NOT_PAGES = ("/api/", "/healthz", "/readyz", "/openapi.json")
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
EVENT = re.compile(r"[a-z_]+(\.[a-z_0-9]+)+")
WORD = re.compile(r"[A-Za-z][A-Za-z']*")


@dataclass
class Source:
    """What one Python file adds to the counts."""

    code_lines: set[int] = field(default_factory=set)
    tokens: int = 0
    prose: list[str] = field(default_factory=list)


def main() -> int:
    """Print the table, or the figures of the named files; return the exit status."""
    if len(sys.argv) > 1:
        return print_files(Path(name) for name in sys.argv[1:])
    counts, failed = count(), False
    for name, bound in tomllib.loads(BUDGET.read_text("utf-8"))["bounds"].items():
        exceeds = counts[name] > bound
        failed |= exceeds
        print(f"{name:32} {counts[name]:>10,} of {bound:>10,}  {'EXCEEDED' if exceeds else ''}".rstrip())
    return 1 if failed else 0


def print_files(paths: Iterable[Path]) -> int:
    """Print the figures of prose of single files."""
    for path in paths:
        words = words_of(read_source(path.read_text("utf-8")).prose)
        long = sum(len(line) > WIDTH for line in path.read_text("utf-8").splitlines())
        of, its = (1000 * words[w] / max(words.total(), 1) for w in ("of", "its"))
        print(f"{path}: {words.total()} words, of {of:.0f}, its {its:.0f}; {long} long lines")
    return 0


def count() -> dict[str, float]:
    """Each figure of the budget by its name."""
    files = _files()
    python = {name: (ROOT / name).read_text("utf-8") for name in files if name.endswith(".py")}
    service = {name: text for name, text in python.items() if name.startswith(SERVICE)}
    sources = {name: read_source(text) for name, text in service.items()}

    def code(*prefixes: str) -> int:
        return sum(len(s.code_lines) for name, s in sources.items() if name.startswith(prefixes))

    material = [n for n in files if n.startswith(SERVICE) and n.endswith(MATERIAL) and "/vendor/" not in n]
    data = [n for n in files if n.startswith("tests/") and not n.endswith(".py")]
    docs = [n for n in files if n.startswith("docs/") and n.endswith(".md")]
    words = words_of(text for source in sources.values() for text in source.prose)
    functions = [f for text in service.values() for f in _functions(ast.parse(text))]
    return {
        "code_lines": code(SERVICE),
        "code_lines_lab": code(LAB),
        "code_lines_studies": code(f"{PACKAGE}studies/"),
        "code_tokens": sum(s.tokens for s in sources.values()),
        "material_lines": sum(_lines(name) for name in material),
        "yaml_kb": sum(_size(n) for n in files if n.startswith(SERVICE) and n.endswith((".yaml", ".yml")))
        // 1000,
        "test_lines": sum(text.count("\n") for name, text in python.items() if name.startswith("tests/")),
        "test_data_kb": sum(map(_size, data)) // 1000,
        "benchmark_lines": sum(
            text.count("\n") for name, text in python.items() if name.startswith("benchmarks/")
        ),
        **_tables(files),
        **_surface(),
        "log_events": len({event for text in service.values() for event in _events(text)}),
        "docs_pages": sum("/decisions/" not in name for name in docs),
        "docs_words": sum(len((ROOT / name).read_text("utf-8").split()) for name in docs),
        "runtime_packages": len(
            re.findall(r"^\S+==", (ROOT / "requirements/runtime.txt").read_text(), re.MULTILINE)
        ),
        "layers": len(_layers()),
        "import_circles": sum(map(_circles, _rooms(service).values())),
        "type_checking": sum(
            bool(re.search(r"^\s*if TYPE_CHECKING:", t, re.MULTILINE)) for t in service.values()
        ),
        "function_imports": sum(_inner_imports(t) for n, t in service.items() if not n.startswith(ON_DEMAND)),
        "long_lines": sum(len(line) > WIDTH for text in service.values() for line in text.splitlines()),
        "complex_functions_per_mille": round(
            1000 * sum(_complexity(f) > 10 for f in functions) / len(functions)
        ),
        "functions_over_60_lines": sum((f.end_lineno or 0) - f.lineno + 1 > 60 for f in functions),
        "of_per_1000_words": round(1000 * words["of"] / words.total()),
        "its_per_1000_words": round(1000 * words["its"] / words.total()),
        "doubled_class_names": sum(n > 1 for n in _class_names(service.values()).values()),
    }


def read_source(text: str) -> Source:
    """Split a Python file into lines and tokens of code, and prose: docstrings and comments."""
    source, docstrings = Source(), set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                docstrings.add((first.lineno, first.col_offset))
                source.prose.append(first.value.value)
    blank = {
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENCODING,
        tokenize.ENDMARKER,
    }
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            source.prose.append(token.string)
        elif token.type not in blank and token.start not in docstrings:
            source.tokens += 1
            source.code_lines.update(range(token.start[0], token.end[0] + 1))
    return source


def words_of(texts: Iterable[str]) -> Counter[str]:
    """How often each word stands in the texts, in small letters."""
    return Counter(word.lower() for text in texts for word in WORD.findall(text))


def _files() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def _size(name: str) -> int:
    return (ROOT / name).stat().st_size


def _lines(name: str) -> int:
    return (ROOT / name).read_bytes().count(b"\n")


def _functions(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def _own(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions inside it."""
    for node in ast.iter_child_nodes(function):
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _own(node)


def _complexity(function: ast.AST) -> int:
    """Cyclomatic complexity: 1, and 1 for each branch, each filter, each further operand of `and` and `or`."""
    nodes = list(_own(function))
    operands = sum(len(n.values) - 1 for n in nodes if isinstance(n, ast.BoolOp))
    filters = sum(len(n.ifs) for n in nodes if isinstance(n, ast.comprehension))
    return 1 + operands + filters + sum(isinstance(n, BRANCHES) for n in nodes)


def _inner_imports(text: str) -> int:
    return sum(
        isinstance(n, ast.Import | ast.ImportFrom) for f in _functions(ast.parse(text)) for n in _own(f)
    )


def _class_names(texts: Iterable[str]) -> Counter[str]:
    return Counter(n.name for text in texts for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ClassDef))


def _events(text: str) -> Iterator[str]:
    """Dotted names in calls of a logger."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS:
            values = (
                n.value for first in node.args[:1] for n in ast.walk(first) if isinstance(n, ast.Constant)
            )
            yield from filter(EVENT.fullmatch, map(str, values))


def _rooms(service: dict[str, str]) -> dict[str, dict[str, set[str]]]:
    """By room: each module with the modules of its room that it imports, also inside functions."""
    rooms: dict[str, dict[str, set[str]]] = defaultdict(dict)
    for name, text in service.items():
        module = name.removeprefix(SERVICE).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        room = ".".join(module.split(".")[:2])
        imports = set()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module:
                imports |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Import):
                imports |= {alias.name for alias in node.names}
        rooms[room][module] = imports
    return rooms


def _circles(room: dict[str, set[str]]) -> int:
    """Groups of modules that import each other."""

    def reachable(start: str) -> set[str]:
        seen: set[str] = set()
        todo = [start]
        while todo:
            new = (room[todo.pop()] & room.keys()) - seen
            seen |= new
            todo += new
        return seen

    reach = {module: reachable(module) for module in room}
    return len({frozenset(m for m in room if m in reach[n] and n in reach[m]) for n in room if n in reach[n]})


def _layers() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    layers: list[str] = project["tool"]["importlinter"]["contracts"][0]["layers"]
    return layers


def _tables(files: list[str]) -> dict[str, float]:
    """Tables, and columns of `session_scores`, in the baseline of the migrations."""
    sql = "\n".join(
        (ROOT / n).read_text("utf-8")
        for n in files
        if n.startswith("migrations/") and n.endswith((".py", ".sql"))
    )
    tables = re.findall(r"CREATE TABLE (?:\S+\.)?(\w+) \((.*?)\n\s*\)", sql, re.DOTALL)
    scores = next((body for name, body in tables if name == "session_scores"), "")
    columns = re.findall(
        r"^\s+([a-z_]+) (?:uuid|text|int|integer|bigint|smallint|real|double|numeric|bool|boolean|jsonb|timestamptz)\b",
        scores,
        re.MULTILINE,
    )
    return {"tables": len(tables), "columns_of_session_scores": len(columns)}


def _surface() -> dict[str, float]:
    """What operators and clients see, asked of the code itself."""
    import yaml

    from tarsy_scoring.cli import cli
    from tarsy_scoring.config.chains import Config
    from tarsy_scoring.config.settings import Settings
    from tarsy_scoring.telemetry.metrics import declarations
    from tarsy_scoring.web.app import application

    openapi = application().openapi()
    operations = [m for path in openapi["paths"].values() for m in path]
    pages = [route for route in application().routes if not route.path.startswith(NOT_PAGES)]
    values = yaml.safe_load((ROOT / "helm/tarsy-scoring/values.yaml").read_text("utf-8"))
    return {
        "environment_variables": len(set(Settings.model_fields) - {"config", "unknown_variables"}),
        "yaml_keys": len(set(_keys(Config.model_json_schema()))),
        "chart_keys": _leaves(values),
        "verbs": _verbs(cli),
        "page_routes": len(pages),
        "api_operations": len(operations),
        "metrics": len(declarations()),
    }


def _keys(schema: dict, path: str = "", known: dict | None = None) -> Iterator[str]:  # type: ignore[type-arg]
    """Paths of the keys of nested maps; `*` stands for a name."""
    known = schema.get("$defs", {}) if known is None else known
    schema = known[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    for name, inner in schema.get("properties", {}).items():
        yield f"{path}{name}"
        yield from _keys(inner, f"{path}{name}.", known)
        more = inner.get("additionalProperties")
        if isinstance(more, dict):
            yield from _keys(more, f"{path}{name}.*.", known)


def _verbs(command: Any) -> int:
    """Commands and subcommands."""
    names = command.list_commands(None) if hasattr(command, "list_commands") else []
    return sum(_verbs(command.get_command(None, name)) for name in names) or 1


def _leaves(values: object) -> int:
    return sum(map(_leaves, values.values())) if isinstance(values, dict) and values else 1


if __name__ == "__main__":
    sys.exit(main())
