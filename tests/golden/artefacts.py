"""
The golden artefacts, one function each. Functions import the code themselves: a failed import costs one artefact.

Prose (help texts, descriptions, titles) may change freely and is left out. A long text is kept as its SHA-256.
"""

import asyncio
import hashlib
import json
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from log_events import log_events

Content = str | dict[str, Any] | list[Any]
NONCE = "0123456789abcdef"
TIGHT_BUDGET_TOKENS, TIGHT_FOR_DEMO_TOKENS = 8_000, 2_300


class Skipped(Exception):
    """The machine lacks a program or data that the artefact needs."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The checkout, the folder of recorded sessions, and a stack that stops the servers that artefacts start."""

    root: Path
    sessions: Path
    stack: ExitStack

    @property
    def package(self) -> Path:
        return self.root / "service"


def criteria(_: Surroundings) -> dict[str, Content]:
    """Hash, token budget and judge fingerprint of the shipped criteria."""
    from tarsy_scoring.config.settings import ProviderSettings
    from tarsy_scoring.judge.criteria import load_criteria
    from tarsy_scoring.judge.verdict import Turn
    from tarsy_scoring.scoring.budget import context_budget
    from tarsy_scoring.scoring.score_columns import judge_fingerprint

    provider = ProviderSettings(temperature=0.25)
    turn = Turn("analysis", "67", "main", "judge-model", "judge-model-1", 9, 1, 1, 0.5, 1, "stop")
    return {
        "criteria.json": {
            c.name: {
                "criteria_hash": c.criteria_hash,
                "strategy": c.strategy,
                "content": _sha256(c.content),
                "budget_tokens": context_budget(provider, c),
                "judge_fingerprint": judge_fingerprint(c.criteria_hash, provider, turn),
            }
            for c in load_criteria()
        }
    }


def contexts(surroundings: Surroundings) -> dict[str, Content]:
    """Context, evidence, interaction metrics and diagnosis of each demo session."""
    files = sorted(surroundings.package.glob("*/**/examples/demo-*.json"))
    return {"contexts.json": asyncio.run(_contexts(files, TIGHT_FOR_DEMO_TOKENS))}


def recorded(surroundings: Surroundings) -> dict[str, Content]:
    """As `contexts`, for each recorded session."""
    files = sorted(surroundings.sessions.glob("*.json"))
    if not files:
        raise Skipped("there are no recorded sessions; see --sessions")
    return {"recorded.json": asyncio.run(_contexts(files, TIGHT_BUDGET_TOKENS))}


async def _contexts(files: list[Path], tight_budget: int) -> dict[str, Any]:
    """By session id; an `error_kind` replaces a session that cannot be read or fitted."""
    from tarsy_scoring.config.settings import ProviderSettings
    from tarsy_scoring.errors import ScoringError
    from tarsy_scoring.evaluation.diagnosis import diagnose
    from tarsy_scoring.evaluation.interaction import measure_interaction
    from tarsy_scoring.judge.criteria import load_criteria
    from tarsy_scoring.scoring.budget import context_budget
    from tarsy_scoring.timeline.context import build_context
    from tarsy_scoring.timeline.evidence import check_evidence
    from tarsy_scoring.timeline.files import SessionFiles

    shipped = load_criteria()
    default_budget = context_budget(ProviderSettings(), shipped.get("investigation-methodology"))

    def kind_of(error: ScoringError) -> dict[str, str]:
        return {"error": getattr(error, "error_kind", type(error).__name__)}

    def or_kind(make: Callable[[], Any]) -> Any:
        try:
            return make()
        except ScoringError as error:
            return kind_of(error)

    def context(timeline: Any, budget: int) -> dict[str, Any]:
        fitted = build_context(timeline, NONCE, budget)
        masked = build_context(timeline, NONCE, budget, mask_injections=True)
        text = f"{fitted.alert}\0{fitted.conversation}"
        return {
            "sha256": _sha256(text),
            "context_hash": fitted.context_hash,
            "length": len(text),
            "tokens": fitted.tokens,
            "shown_share": round(fitted.shown_share, 6),
            "cut": f"{len(fitted.cut_entries)} {_sha256(fitted.cut_entries)}",
            "not_shown": f"{len(fitted.not_shown)} {_sha256(fitted.not_shown)}",
            "flags": sorted(fitted.flags),
            "entries": f"{len(fitted.entries)} {_sha256(fitted.entries)}",
            "injections": dict(Counter(found.pattern for found in fitted.injections)),
            "redacted": dict(Counter(re.findall(r"\[REDACTED:(\w+)#\d+\]", text))),
            "masked_hash": masked.context_hash,
            "questions": _sha256([[m.role, m.content] for c in shipped for m in c.open_conversation(fitted)]),
        }

    found = {}
    for file in files:
        try:
            timeline = await SessionFiles(file.parent).fetch_timeline(file.stem)
        except ScoringError as error:
            found[file.stem] = kind_of(error)
            continue
        interaction = measure_interaction(timeline)
        findings = diagnose(interaction)
        missing = timeline.evidence.missing
        found[file.stem] = {
            "context": or_kind(lambda t=timeline: context(t, default_budget)),
            "tight_context": or_kind(lambda t=timeline: context(t, tight_budget)),
            "evidence": or_kind(lambda t=timeline: check_evidence(t, 0.0, may_change=False)),
            "evidence_counts": {"expected": timeline.evidence.expected, "read": timeline.evidence.read},
            "missing": f"{len(missing)} {_sha256(missing)}",
            "commands": interaction.total_commands,
            "errors": interaction.error_count,
            "interaction": _sha256(interaction.document()),
            "patterns": [finding.pattern for finding in findings],
            "diagnosis": _sha256([[f.pattern, f.likely_cause, f.evidence] for f in findings]),
        }
    return found


def schemas(_: Surroundings) -> dict[str, Content]:
    """SHA-256 of each JSON Schema and of the AsyncAPI document."""
    from generate import render_all

    files = {str(path): text for path, text in render_all().items() if path.suffix in {".json", ".yaml"}}
    del files["schemas/openapi.json"]
    return {"schemas.json": {path: _sha256(_without_prose(yaml.safe_load(text))) for path, text in files.items()}}


def openapi(_: Surroundings) -> dict[str, Content]:
    """Paths, parameters, status codes and schemas of the HTTP API."""
    from generate import render_all

    document = json.loads(next(t for p, t in render_all().items() if p.name == "openapi.json"))
    return {"openapi.json": _without_prose(document)}


def metrics(_: Surroundings) -> dict[str, Content]:
    """Type, labels and buckets of each metric."""
    from tarsy_scoring.telemetry.metrics import Metrics

    known = {}
    for collector in Metrics().registry._collector_to_names:
        if hasattr(collector, "_labelnames"):
            described = {"type": collector._type, "labels": list(collector._labelnames)}
            if buckets := getattr(collector, "_kwargs", {}).get("buckets"):
                described["buckets"] = list(buckets)
            known[collector._name] = described
    return {"metrics.json": known}


def commands(_: Surroundings) -> dict[str, Content]:
    """Every command with its arguments and options."""
    import click

    from tarsy_scoring.cli import cli

    prose = {"help", "short_help", "epilog", "param_type"}

    def plain(value: Any, key: str = "") -> Any:
        if isinstance(value, Mapping):
            # A command may be called `help`.
            return {k: plain(v, k) for k, v in value.items() if key == "commands" or k not in prose}
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        return value if value is None or isinstance(value, str | int | float) else f"a {type(value).__name__}"

    return {"commands.json": plain(cli.to_info_dict(click.Context(cli)))}


def settings(_: Surroundings) -> dict[str, Content]:
    """Every environment variable and YAML key with type and default."""
    from tarsy_scoring.config.gates import GATE_TYPES
    from tarsy_scoring.config.settings import ALIASES, SECRETS_FROM_FILES, Config, Settings, variable_of

    variables = {}
    for field, schema in _inlined(Settings.model_json_schema())["properties"].items():
        if field in {"config", "unknown_variables"}:
            continue
        variables[variable_of(field)] = schema
        if field in SECRETS_FROM_FILES:
            schema["file_variable"] = f"{variable_of(field)}_FILE"
        if field in ALIASES:
            schema["alias"] = ALIASES[field]
    gates = {name: dict(_keys(_inlined(gate.model_json_schema()))) for name, gate in GATE_TYPES.items()}
    keys = dict(_keys(_inlined(Config.model_json_schema())))
    return {"settings.json": {"variables": variables, "keys": keys, "gates": gates}}


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema without prose and with each `$ref` resolved: class names may change."""
    known = schema.get("$defs", {})

    def inline(node: Any) -> Any:
        if isinstance(node, dict):
            if "$ref" in node:
                node = known[node["$ref"].rpartition("/")[2]] | {k: v for k, v in node.items() if k != "$ref"}
            return {k: inline(v) for k, v in node.items() if k not in {"$defs", "discriminator"}}
        return [inline(item) for item in node] if isinstance(node, list) else node

    inlined: dict[str, Any] = inline(_without_prose(schema))
    return inlined


def _keys(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every key of nested maps by its path; `*` stands for a name."""
    for name, inner in schema.get("properties", {}).items():
        here = f"{path}{name}"
        named = inner.get("additionalProperties")
        has_keys = isinstance(named, dict) and "properties" in named
        own = {k: v for k, v in inner.items() if k not in {"properties", "required"}}
        if has_keys:
            del own["additionalProperties"]
        yield here, own | {"is_required": name in schema.get("required", ())}
        yield from _keys(inner, f"{here}.")
        if has_keys:
            yield from _keys(named, f"{here}.*.")


def helm(surroundings: Surroundings) -> dict[str, Content]:
    """The objects that the chart renders for each file in its folder `ci`."""
    from deploying import CHART, VALUE_SETS, find_helm

    program = find_helm()
    if program is None:
        raise Skipped("there is no helm: go install helm.sh/helm/v3/cmd/helm@latest")
    rendered = {}
    for name, values in sorted(VALUE_SETS.items()):
        arguments = ["template", "scoring", str(CHART), "--namespace=sre", f"--values={values}"]
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise RuntimeError(f"{values.name}: {done.stderr}")
        objects = [_without_prose(item) for item in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader) if item]
        for item in objects:
            for file, text in item.get("data", {}).items() if item["kind"] == "ConfigMap" else ():
                if file.endswith(".json"):
                    item["data"][file] = f"SHA-256 without prose: {_sha256(_without_prose(json.loads(text)))}"
        objects.sort(key=lambda item: (item["kind"], item["metadata"]["name"]))
        rendered[f"helm/{name}.yaml"] = yaml.dump_all(objects, Dumper=yaml.CSafeDumper, width=110)
    return rendered


def logs(surroundings: Surroundings) -> dict[str, Content]:
    """Every dotted event name in the logging calls of the source."""
    return {"logs.json": sorted(log_events(surroundings.package))}


def tables(surroundings: Surroundings) -> dict[str, Content]:
    """Columns, indexes and constraints of the migrated schema."""
    from golden.databases import read_tables

    return {"tables.json": read_tables(surroundings.stack)}


def plans(surroundings: Surroundings) -> dict[str, Content]:
    """Plans of the hot statements: nodes, relations and indexes, no costs."""
    from golden.databases import read_plans

    return {"plans.json": read_plans(surroundings.stack)}


ARTEFACTS: Mapping[str, Callable[[Surroundings], dict[str, Content]]] = {
    make.__name__: make
    for make in (
        *(criteria, contexts, recorded, schemas, openapi, metrics, commands, settings, helm, logs, tables, plans),
    )
}

_PROSE = {"description", "summary", "title", "example", "examples", "operationId", "tags", "markdown"}
_OF_NAMES = {"properties", "$defs", "schemas", "channels", "messages"}


def _without_prose(node: Any, *, is_names: bool = False) -> Any:
    """The document without prose keys; lists whose order has no meaning (`parameters`, `required`) are sorted."""
    if isinstance(node, list):
        return [_without_prose(item) for item in node]
    if not isinstance(node, dict):
        return node
    cleaned = {
        key: _without_prose(value, is_names=key in _OF_NAMES and not is_names)
        for key, value in node.items()
        if is_names or key not in _PROSE
    }
    if not is_names:
        if isinstance(cleaned.get("required"), list):
            cleaned["required"].sort()
        if isinstance(cleaned.get("parameters"), list):
            cleaned["parameters"].sort(key=lambda p: json.dumps(p, sort_keys=True))
    return cleaned


def _sha256(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
