"""Dashboard and alert rules: their series exist, alerts have a runbook, and each fires only when it should."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import yaml
from prometheus_client.metrics import MetricWrapperBase

from tarsy_scoring.tarsy.write_back import Result
from tarsy_scoring.telemetry.metrics import ASKED_BY, CIRCUIT_KINDS, HOLDS, Metrics, declarations

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "helm" / "tarsy-scoring" / "files"
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
DASHBOARD = json.loads((FILES / "dashboard.json").read_text(encoding="utf-8"))
RULES = [r for g in yaml.safe_load((FILES / "alerts.yaml").read_text(encoding="utf-8"))["groups"] for r in g["rules"]]
ALERTS = {r["alert"]: r for r in RULES if "alert" in r}
CASES = yaml.safe_load((FILES / "alerts_test.yaml").read_text(encoding="utf-8"))["tests"]
PANELS = [p for p in DASHBOARD["panels"] if p["type"] != "row"]

TARGET_LABELS = {"namespace", "job", "instance", "pod"}  # what Prometheus adds where it scrapes
WORDS = {
    *("and", "avg_over_time", "by", "clamp_max", "group", "histogram_quantile", "increase", "max", "max_over_time"),
    *("offset", "on", "or", "rate", "sum", "time", "unless"),
}
_TEXT = r'"(?:[^"\\]|\\.)*"'
_SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\s*\{((?:[^\"}]|" + _TEXT + r")*)\}")
_SPAN = re.compile(r"\[[^\]]*\]|\boffset \w+")
_GROUPING = re.compile(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)")
_MATCHER = re.compile(rf"(\w+)\s*(=~|!~|!=|=)\s*({_TEXT})")


def series() -> dict[str, set[str]]:
    """Every exported series, with its labels."""
    metrics = Metrics()
    known: dict[str, set[str]] = {}
    for one in vars(metrics).values():
        if not isinstance(one, MetricWrapperBase):
            continue
        labels = set(one._labelnames)
        if one._type == "histogram":
            known |= {f"{one._name}_{part}": labels for part in ("count", "sum")}
            known[f"{one._name}_bucket"] = labels | {"le"}
        else:
            known[one._name + ("_total" if one._type == "counter" else "")] = labels
    for family in metrics.registry.collect():
        if not family.name.startswith("tarsy_scoring_"):
            known |= {sample.name: set(sample.labels) for sample in family.samples}
    for rule in RULES:
        if "record" in rule:
            known[rule["record"]] = set()
    return known


KNOWN = series()
BUCKETS = {
    f"{one._name}_bucket": {str(float(bound)).replace("inf", "+Inf") for bound in one._kwargs["buckets"]} | {"+Inf"}
    for one in vars(Metrics()).values()
    if isinstance(one, MetricWrapperBase) and one._type == "histogram"
}
VALUES = {
    ("tarsy_scoring_attempts_total", "outcome"): declarations()["attempts"].starts_with,
    ("tarsy_scoring_circuit_open", "kind"): CIRCUIT_KINDS,
    ("tarsy_scoring_queue_due_scores", "waiting_for"): HOLDS,
    ("tarsy_scoring_role", "role"): ("intake", "judging", "relay", "api", "bridge", "insights"),
    ("tarsy_scoring_write_backs_total", "result"): get_args(Result),
    **{(f"tarsy_scoring_score_delay_seconds_{p}", "asked_by"): ASKED_BY for p in ("bucket", "count")},
    **{
        (f"tarsy_scoring_request_delay_seconds_{p}", "source"): declarations()["request_delay"].starts_with
        for p in ("bucket", "count")
    },
}


def unknown_parts(expression: str) -> list[str]:
    """Names of series and labels, and label values, that no process exports."""
    wrong: list[str] = []
    grouped = [label.strip() for group in _GROUPING.findall(expression) for label in group.split(",")]
    bare = _SPAN.sub("", _GROUPING.sub("", _SELECTOR.sub(r"\1", expression)))
    used = {name for name in re.findall(r"[a-zA-Z_:][\w:]*", bare) if name not in WORDS}
    wrong += [name for name in used if name not in KNOWN]
    for name, matchers in _SELECTOR.findall(expression):
        for label, operator, text in _MATCHER.findall(matchers):
            if label not in KNOWN.get(name, set()) | TARGET_LABELS:
                wrong.append(f"{name}{{{label}}}")
            allowed = BUCKETS[name] if label == "le" else VALUES.get((name, label))
            values = text.strip('"').split("|") if "~" in operator else [text.strip('"')]
            if allowed is not None:
                wrong += [f"{name}{{{label}={v}}}" for v in values if v not in allowed]
    labels = {label for name in used for label in KNOWN.get(name, set())} | TARGET_LABELS
    return wrong + [f"by ({label})" for label in grouped if label not in labels]


def test_routes_in_rules_are_routes_of_the_api() -> None:
    paths = json.loads((ROOT / "schemas" / "openapi.json").read_text(encoding="utf-8"))["paths"]
    found = re.findall(rf"route=~({_TEXT})", ALERTS["TarsyScoringApiSlow"]["expr"])
    patterns = [json.loads(text) for text in found]

    assert len(patterns) == 2
    assert [[p for p in paths if re.fullmatch(pattern, p)] for pattern in patterns] == [
        ["/api/v1/scoring/sessions/{session_id}/score", "/api/v1/scoring/scores/{score_id}"]
    ] * 2


# --- rules ---------------------------------------------------------------------------------------------


def test_rules_evaluate_each_installation_separately() -> None:
    """`absent` stays silent for all installations as long as one has the series."""
    grouping = r"\b(?:and|unless|[-/])\s+(on \(namespace(?:, instance)?\)|sum by \(namespace\)|\()?"
    for rule in RULES:
        expression = rule["expr"]
        assert "absent" not in expression
        assert re.findall(r"\b(?:sum|max|group)\b(?! by \(namespace\b)", expression) == []
        assert all(re.findall(grouping, expression)), expression


def anchors(page: str) -> set[str]:
    """Anchors of the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_alerts_have_a_severity_a_first_look_and_a_runbook() -> None:
    known = anchors(OPERATIONS)
    for alert in ALERTS.values():
        notes = alert["annotations"]
        page, _, anchor = notes["runbook"].partition("#")
        assert alert["labels"]["severity"] in ("warning", "critical")
        assert re.fullmatch(r"\d+m", alert["for"])
        assert len(notes["summary"]) <= 80
        assert re.search(r"\b[Ll]ook (at|for)\b", notes["description"])
        assert (page, anchor in known) == ("docs/operations.md", True), anchor


def test_the_page_lists_every_alert_with_its_severity_and_section() -> None:
    rows = re.findall(r"^\| `(TarsyScoring\w+)` \| (\w+) \| .* \| \[.*\]\(#([\w-]+)\) \|$", OPERATIONS, re.MULTILINE)

    assert sorted(rows) == sorted(
        (name, alert["labels"]["severity"], alert["annotations"]["runbook"].partition("#")[2])
        for name, alert in ALERTS.items()
    )


def asked() -> Iterator[tuple[str, bool]]:
    """Alerts that a case tests, and whether it expects them to fire."""
    for case in CASES:
        for test in case["promql_expr_test"]:
            if found := re.match(r'ALERTS\{alertname=~?"([^"]+)"', test["expr"]):
                yield from ((name, bool(test["exp_samples"])) for name in ALERTS if re.fullmatch(found[1], name))
