"""Variables of the pods: the service can read them, numbers stay whole, and secrets are only referred to."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploying import CHART, MINIMAL, NO_API, VALUE_SETS, Objects, Render, RenderObjects, secret_variables

from tarsy_scoring.config.load import load_settings

OURS, SECRET = "the chart sets this variable itself", "a secret must not stand in the values"
REFUSED = {
    "SCORING_KAFKA_CA_FILE=/ca.crt": OURS,
    "SCORING_DATABASE_URL_FILE=/url": OURS,
    "SCORING_SLOTS=3": OURS,
    "JUDGE_KEY=hunter2": SECRET,
    "GATEWAY_TOKEN=hunter2": SECRET,
    "PROXY_PASSWORD=hunter2": SECRET,
    "OTEL_EXPORTER_OTLP_HEADERS=hunter2": SECRET,
    "HTTPS_PROXY=http://me:hunter2@proxy": SECRET,
}


def integers(part: dict[str, Any]) -> dict[str, Any]:
    """The integer keys of the schema, each with its maximum or 3,000,000, whichever is smaller."""
    found = {}
    for name, said in part.get("properties", {}).items():
        if said.get("type") == "integer":
            found[name] = min(said.get("maximum", 3_000_000), 3_000_000)
        elif inner := integers(said):
            found[name] = inner
    return found


def programs(chart: Objects) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name and container of every program but migrations, which read nothing except their URL."""
    for item, _, container in chart.containers():
        if "-migrate-" not in item["metadata"]["name"]:
            yield item["metadata"]["name"], container


@pytest.mark.parametrize("name", ["everything", "bridge", "proxies", "minimal"])
def test_every_program_can_read_the_configuration(charts: dict[str, Objects], tmp_path: Path, name: str) -> None:
    chart = charts[name]
    seen = []
    for program, container in programs(chart):
        given = {v["name"]: v.get("value", "postgresql://u@h/d") for v in container["env"]}
        given.pop("SCORING_KAFKA_SASL_PASSWORD", None)
        if "SCORING_CONFIG" in given:
            path = tmp_path / "config.yaml"
            path.write_text(chart.one("ConfigMap", "scoring-config")["data"]["config.yaml"])
            given["SCORING_CONFIG"] = str(path)
        assert load_settings(given).unknown_variables == ()
        seen.append(program)
    assert "scoring-worker" in seen


def test_each_program_can_have_its_own_database_role(render: RenderObjects) -> None:
    """With the common Secret for the others, and the owner of the tables for migrations."""
    own = [f"--set=database.of.{name}.existingSecret=scores-{name}" for name in ("api", "insights", "worker")]
    chart = render(f"--values={VALUE_SETS['everything']}", *own, "--set=migrations.existingSecret=owner")
    secrets = {
        item["metadata"]["name"].removeprefix("scoring-"): v["valueFrom"]["secretKeyRef"]["name"]
        for item, _, container in chart.containers()
        for v in container["env"]
        if v["name"] == "SCORING_DATABASE_URL"
    }
    assert {name: secrets[name] for name in ("api", "insights", "worker")} == {
        "api": "scores-api",
        "insights": "scores-insights",
        "worker": "scores-worker",
    }
    assert {secrets[name] for name in ("migrate-pre", "migrate-post")} == {"owner"}
    assert (
        secrets["intake"]
        == secrets["prune"]
        == yaml.safe_load(VALUE_SETS["everything"].read_text())["database"]["existingSecret"]
    )


def test_workers_can_have_secrets_as_files(render: RenderObjects) -> None:
    """All but those that `config` may name; each file is mounted where its variable says."""
    chart = render(f"--values={VALUE_SETS['everything']}", "--set=worker.secretsAsFiles=true")
    named = yaml.safe_load(VALUE_SETS["everything"].read_text())["secretEnv"]
    [(pod, worker)] = [(p, c) for item, p, c in chart.containers() if item["metadata"]["name"] == "scoring-worker"]
    [volume] = [v for v in pod["volumes"] if v["name"] == "secrets"]
    [mount] = [m for m in worker["volumeMounts"] if m["name"] == "secrets"]
    mounted = {
        f"{mount['mountPath']}/{i['path']}" for s in volume["projected"]["sources"] for i in s["secret"]["items"]
    }
    variables = {v["name"]: v.get("value") for v in worker["env"]}

    assert {v["name"] for v in worker["env"] if "secretKeyRef" in v.get("valueFrom", {})} == set(named)
    assert {"SCORING_DATABASE_URL_FILE", "OPENAI_API_KEY_FILE"} <= variables.keys()
    assert {value for value in variables.values() if str(value).startswith(mount["mountPath"] + "/")} == mounted
    assert len({v["name"].removesuffix("_FILE") for v in worker["env"]}) == len(worker["env"])


def test_secret_variables_reach_every_program_with_the_configuration(charts: dict[str, Objects]) -> None:
    wanted = yaml.safe_load(VALUE_SETS["everything"].read_text())["secretEnv"]
    assert wanted
    holders = set()
    for program, container in programs(charts["everything"]):
        holders.add(program)
        given = {v["name"]: v.get("valueFrom") for v in container["env"]}
        for name, source in wanted.items():
            assert given[name] == {"secretKeyRef": {"name": source["existingSecret"], "key": source["key"]}}
    assert holders == {
        f"scoring-{name}" for name in ("intake", "worker", "api", "bridge", "insights", "notify", "prune", "test")
    }


def test_env_refuses_secrets_and_variables_of_the_chart(helm: Render) -> None:
    """The refusal says where the variable belongs and does not repeat its value."""
    for assignment, sentence in REFUSED.items():
        done = helm("template", "s", str(CHART), *MINIMAL, NO_API, f"--set=env.{assignment}", check=False)
        assert done.returncode != 0, assignment
        assert f"env.{assignment.partition('=')[0]}: {sentence}" in done.stderr
        assert "hunter2" not in done.stderr


def test_every_secret_is_refused_in_plain_values() -> None:
    """The check of the chart names each secret variable; the test above shows the refusal."""
    checks = (CHART / "templates" / "checks.yaml").read_text()
    listed = checks.partition("$secrets := list")[2].partition("}}")[0]
    assert {variable for variable in secret_variables() if f'"{variable}"' not in listed} == set()
