"""The rules that only the chart can write: a process that is gone exports nothing, and is missed by its name."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploying import CHART, MINIMAL, REPOSITORY, Objects, RenderObjects

OURS = {
    "TarsyScoringNobodyJudges": ("judging", "worker"),
    "TarsyScoringNobodyTakesIn": ("intake", "worker"),
    "TarsyScoringNobodyRelays": ("relay", "worker"),
    "TarsyScoringApiGone": ("api", "api"),
    "TarsyScoringNobodyBridges": ("bridge", "bridge"),
    "TarsyScoringInsightsGone": ("insights", "insights"),
}


def rules_of(chart: Objects) -> dict[str, dict[str, Any]]:
    (group,) = chart.one("PrometheusRule", "scoring-presence")["spec"]["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def test_every_part_that_is_deployed_is_missed(render: RenderObjects, charts: dict[str, Objects]) -> None:
    """A rule for each role of each part of the release, and none for a part that was never wanted."""
    assert set(rules_of(charts["everything"])) == set(OURS)
    enabled = "--set=monitoring.prometheusRule.enabled=true"
    workers = {alert for alert, (_, part) in OURS.items() if part == "worker"}
    assert set(rules_of(render(*MINIMAL, "--set=api.enabled=false", enabled))) == workers


def test_runbooks_exist(charts: dict[str, Objects]) -> None:
    operations = (REPOSITORY / "docs" / "operations.md").read_text()
    parts = {line.lstrip("# ").lower().replace(" ", "-") for line in operations.splitlines() if line.startswith("#")}
    for rule in rules_of(charts["everything"]).values():
        page, _, part = rule["annotations"]["runbook"].partition("#")
        assert (page, part in parts) == ("docs/operations.md", True), part


def test_the_same_page_is_not_sent_twice(charts: dict[str, Objects]) -> None:
    """A shipped rule sees the same loss for an hour: labels are the same, so that Alertmanager takes both for one."""
    shipped = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    known = {rule["alert"]: rule for group in shipped["groups"] for rule in group["rules"] if "alert" in rule}
    for alert, rule in rules_of(charts["everything"]).items():
        assert {"namespace": "sre", **known[alert]["labels"]} == rule["labels"]
        for said in ("summary", "runbook"):
            assert known[alert]["annotations"][said] == rule["annotations"][said]


def test_they_fire_for_what_is_gone_and_nothing_else(charts: dict[str, Objects], tmp_path: Path) -> None:
    """By Prometheus' own tool: another release's workers do not stand in for ours, and what is there is not missed."""
    if shutil.which("promtool") is None:
        pytest.skip("there is no promtool: it is in Debian's package prometheus")
    spec = charts["everything"].one("PrometheusRule", "scoring-presence")["spec"]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(spec))
    present = {"namespace": "sre", "job": "scoring-worker", "role": "judging"}
    others = [
        {"namespace": "sre", "job": "scoring-api", "role": "api"},
        {"namespace": "dev", "job": "scoring-worker", "role": "intake"},
        {"namespace": "sre", "job": "other-worker", "role": "relay"},
        {"namespace": "sre", "job": "scoring-bridge", "role": "bridge"},
        {"namespace": "dev", "job": "scoring-insights", "role": "insights"},
    ]
    values = ["1x20", "1x20", "1x20", "1x20", "0x20", "1x20"]

    def series(labels: dict[str, str]) -> str:
        matchers = ",".join(f'{name}="{value}"' for name, value in labels.items())
        return f"tarsy_scoring_role{{{matchers}}}"

    def case(alert: str) -> dict[str, Any]:
        is_there = alert in ("TarsyScoringNobodyJudges", "TarsyScoringApiGone")
        rule = rules_of(charts["everything"])[alert]
        firing = {"exp_labels": rule["labels"], "exp_annotations": rule["annotations"]}
        return {"eval_time": "10m", "alertname": alert, "exp_alerts": [] if is_there else [firing]}

    (tmp_path / "tests.yaml").write_text(
        yaml.safe_dump(
            {
                "rule_files": ["rules.yaml"],
                "tests": [
                    {
                        "interval": "1m",
                        "input_series": [
                            {"series": series(labels), "values": value}
                            for labels, value in zip([present, *others], values, strict=True)
                        ],
                        "alert_rule_test": [case(alert) for alert in OURS],
                    }
                ],
            }
        )
    )
    command = ["promtool", "test", "rules", str(tmp_path / "tests.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
