"""
Generates files from the code: JSON Schemas, the AsyncAPI and OpenAPI documents, the pages of settings and
routes.

`python schemas/generate.py` writes; with `--check` it writes nothing, names each file that differs, and
then ends with status 1. The examples in `examples/`, and the schemas of messages that this service only writes, are
written by hand; both go into the AsyncAPI document.
"""

import argparse
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

import yaml
from asyncapi_document import asyncapi_document
from configuration_page import configuration_page
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from tarsy_scoring import events
from tarsy_scoring.scores.shapes import ScoreDocument
from tarsy_scoring.telemetry.metrics import PREFIX, Metrics, declarations
from tarsy_scoring.web.app import application

METRICS_BEGIN, METRICS_END = "<!-- metrics: generated from telemetry/metrics.yaml -->", "<!-- /metrics -->"
TABLES_BEGIN, TABLES_END = "<!-- tables: generated from migrations/versions -->", "<!-- /tables -->"
ROOT = Path(__file__).resolve().parents[1]

MODELS: Mapping[str, type[BaseModel]] = {
    "session-completed": events.SessionCompleted,
    "rescore-requested": events.RescoreRequested,
    "scoring-completed": events.ScoringCompleted,
    "score-document": ScoreDocument,
}


class _Plain(GenerateJsonSchema):
    """No titles made up from field names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def render_all() -> dict[Path, str]:
    """Path below the root -> content, the same bytes for the same code and examples."""
    files = {Path(f"schemas/{name}.v1.json"): _as_json(_json_schema(name)) for name in MODELS}
    examples = {
        p.stem: json.loads(p.read_text("utf-8")) for p in sorted((ROOT / "schemas/examples").glob("*.json"))
    }
    document = asyncapi_document(examples)
    files[Path("schemas/asyncapi.yaml")] = yaml.safe_dump(
        document, sort_keys=False, allow_unicode=True, width=110
    )
    files[Path("schemas/openapi.json")] = _as_json(application().openapi())
    files[Path("docs/configuration.md")] = configuration_page()
    for name, begin, end, part in (
        ("docs/operations.md", METRICS_BEGIN, METRICS_END, _metrics_table()),
        ("docs/architecture.md", TABLES_BEGIN, TABLES_END, _drawn_tables()),
    ):
        files[Path(name)] = _with_part(name, begin, end, part)
    return files


def _with_part(name: str, begin: str, end: str, part: str) -> str:
    """The page with what stands between the marks replaced."""
    head, begin, rest = (ROOT / name).read_text("utf-8").partition(begin)
    _, end, tail = rest.partition(end)
    assert end, f"{name} has lost the marks around its generated part"
    return f"{head}{begin}\n{part}{end}{tail}"


def _drawn_tables() -> str:
    """Tables with foreign keys, as Mermaid draws them, and the names of the others."""
    sql = "".join(path.read_text("utf-8") for path in sorted((ROOT / "migrations/versions").glob("*.py")))
    tables = dict(re.findall(r"CREATE TABLE (\w+) \((.*?)\n\)", sql, re.DOTALL))
    found = re.compile(r"(NOT NULL |PRIMARY KEY |\n +)?REFERENCES (\w+)")
    links = [(table, to, given) for table, body in tables.items() for given, to in found.findall(body)]
    ends = ((to, "||" if given else "|o", table) for table, to, given in links)
    drawn = "".join(f'    {to} {end}--o{{ {table} : ""\n' for to, end, table in ends)
    alone = ", ".join(f"`{table}`" for table in tables if not any(table in link for link in links))
    return f"```mermaid\nerDiagram\n{drawn}```\n\nTables without a foreign key: {alone}.\n"


def _metrics_table() -> str:
    """The table of `docs/operations.md`."""
    lines = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for attribute, kind in get_type_hints(Metrics).items():
        one = declarations()[attribute]
        labels = ", ".join(f"`{label}`" for label in one.labels)
        lines.append(f"| `{PREFIX}{one.name}` | {kind.__name__.lower()} | {labels} | {one.help} |")
    return "\n".join(lines) + "\n"


def _json_schema(name: str) -> dict[str, Any]:
    schema = MODELS[name].model_json_schema(schema_generator=_Plain)
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:tarsy-scoring:schema:{name}:1",
        "title": name.replace("-", " ").capitalize() + ", version 1",
        "description": schema.pop("description"),
    }
    schema.pop("title")
    return head | schema


def _as_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def main() -> str | None:
    """Write or check the files; returns the names of stale files, or None."""
    parser = argparse.ArgumentParser(description="Generate schemas/ and parts of docs/ from the code.")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; status 1 and the names of what differs"
    )
    is_check = parser.parse_args().check
    stale = []
    for path, content in render_all().items():
        file = ROOT / path
        if file.is_file() and file.read_bytes() == content.encode():
            continue
        stale.append(str(path))
        if not is_check:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content.encode())
    if is_check and stale:
        return f"not as generated: {', '.join(stale)}; run: python schemas/generate.py"
    sys.stdout.write(f"written: {', '.join(stale)}\n" if stale else "all files are as generated\n")
    return None


if __name__ == "__main__":
    sys.exit(main())
