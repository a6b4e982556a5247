"""The alert rules for absent processes, which export no metrics themselves, so the chart names them."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploying import CHART, MINIMAL, REPOSITORY, Objects, RenderObjects

ROLE_OF_ALERT = {
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


def test_every_deployed_role_has_an_absence_rule(render: RenderObjects, charts: dict[str, Objects]) -> None:
    """One rule for each role of each deployed part, and none for a part that is not deployed."""
    assert set(rules_of(charts["everything"])) == set(ROLE_OF_ALERT)
    enabled = "--set=monitoring.prometheusRule.enabled=true"
    workers = {alert for alert, (_, part) in ROLE_OF_ALERT.items() if part == "worker"}
    assert set(rules_of(render(*MINIMAL, "--set=api.enabled=false", enabled))) == workers


def test_runbooks_exist(charts: dict[str, Objects]) -> None:
    operations = (REPOSITORY / "docs" / "operations.md").read_text()
    parts = {line.lstrip("# ").lower().replace(" ", "-") for line in operations.splitlines() if line.startswith("#")}
    for rule in rules_of(charts["everything"]).values():
        page, _, part = rule["annotations"]["runbook"].partition("#")
        assert (page, part in parts) == ("docs/operations.md", True), part


def test_an_absence_rule_has_the_labels_of_the_shipped_rule(charts: dict[str, Objects]) -> None:
    """A shipped rule may fire for the same loss; equal labels let Alertmanager merge the two."""
    shipped = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    known = {rule["alert"]: rule for group in shipped["groups"] for rule in group["rules"] if "alert" in rule}
    for alert, rule in rules_of(charts["everything"]).items():
        assert {"namespace": "sre", **known[alert]["labels"]} == rule["labels"]
        for said in ("summary", "runbook"):
            assert known[alert]["annotations"][said] == rule["annotations"][said]


def test_rules_fire_for_absent_roles_alone(charts: dict[str, Objects], tmp_path: Path) -> None:
    """Under `promtool`, another release's pods do not count, and a present role raises no alert."""
    if shutil.which("promtool") is None:
        pytest.skip("there is no promtool: it is in Debian's package prometheus")
    spec = charts["everything"].one("PrometheusRule", "scoring-presence")["spec"]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(spec))
    present = {"namespace": "sre", "job": "scoring-worker", "role": "judging"}
    others = [
        {"namespace": "sre", "job": "scoring-api-metrics", "role": "api"},
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
                        "alert_rule_test": [case(alert) for alert in ROLE_OF_ALERT],
                    }
                ],
            }
        )
    )
    command = ["promtool", "test", "rules", str(tmp_path / "tests.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
