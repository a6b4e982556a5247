"""The Helm chart: what it renders is valid, consistent, and follows the values."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from deploying import CHART, MARGIN_S, VALUE_SETS, Object, Objects, Render, known_variables, parse, secret_variables

from tarsy_scoring.commands.worker import END_S, STOP_S
from tarsy_scoring.web.server import LONGEST_STOP_S

CHART_TESTING, CHART_TESTING_SUM = (
    "github.com/helm/chart-testing/v3@v3.14.0",
    "h1:OpvIyKdogEeeLK/LIWx3T/M4EC/mkYx4OUw64EODaB8=",
)
VERSIONS = ("1.30", kubernetes_validate.latest_version())
CUSTOM = yaml.safe_load((Path(__file__).parent / "custom_resources.yaml").read_text())
CUSTOM_GROUPS = {
    "ScaledObject": "keda.sh/v1alpha1",
    "TriggerAuthentication": "keda.sh/v1alpha1",
    "ServiceMonitor": "monitoring.coreos.com/v1",
    "PrometheusRule": "monitoring.coreos.com/v1",
}
# Secrets that the operator creates; the chart only refers to them.
SECRETS_THAT_EXIST = {
    "scores",
    "scores-direct",
    "scores-reader",
    "tarsy",
    "judge",
    "oncall",
    "api-tokens",
    "proxy",
    "proxy-keys",
    "kafka-tls",
    "kafka-user",
    "postgres-ca",
    "registry",
    "tarsy-writer",
    "scoring-tls",
    "collector",
    "more",
}
SECRET_VARIABLES = set(yaml.safe_load(VALUE_SETS["everything"].read_text())["secretEnv"])


def as_tuple(labels: dict[str, str]) -> set[tuple[str, str]]:
    return set(labels.items())


def variables(container: Object) -> dict[str, Object]:
    """The variables of a container by name; fails where a name occurs twice."""
    found = {variable["name"]: variable for variable in container["env"]}
    assert len(found) == len(container["env"])
    return found


def phase(hook: Object) -> str:
    """When helm runs a hook."""
    when: str = hook["metadata"]["annotations"]["helm.sh/hook"]
    return when


# --- rendered objects are valid ------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(VALUE_SETS))
def test_lint_finds_nothing(helm: Render, name: str) -> None:
    helm("lint", "--strict", str(CHART), "--values", str(VALUE_SETS[name]))


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_valid(chart: Objects, version: str) -> None:
    """Kubernetes' schemas accept every object; our closed schemas accept those of KEDA and Prometheus."""
    for item in chart.everything:
        kind = item["kind"]
        if kind in CUSTOM_GROUPS:
            assert item["apiVersion"] == CUSTOM_GROUPS[kind]
            assert set(item) == {"apiVersion", "kind", "metadata", "spec"}
            jsonschema.validate(item["spec"], {**CUSTOM[kind], "definitions": CUSTOM["definitions"]})
        else:
            kubernetes_validate.validate(item, version, strict=True)


def test_schema_and_values_name_the_same_keys() -> None:
    """Every object of the schema is closed, and its keys are exactly those that have a default."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def compare(part: dict[str, Any], value: dict[str, Any], path: str) -> None:
        assert part["additionalProperties"] is False, path
        assert set(part["properties"]) - {"global"} == set(value), path
        for name, said in part["properties"].items():
            inner = schema["definitions"][said["$ref"].rpartition("/")[2]] if "$ref" in said else said
            if "properties" in inner and "requests" not in inner["properties"] and name != "pod":
                compare(inner, value[name], f"{path}.{name}")

    compare(schema, values, "values")


# --- references resolve --------------------------------------------------------------------------------


def test_selectors_match_their_pods(chart: Objects) -> None:
    """Workloads, budgets and Services select their own pods alone; other selectors match something."""
    pods = {item["metadata"]["name"]: as_tuple(made["metadata"]["labels"]) for item, made in chart.templates()}
    for item in chart.of("Deployment") + chart.of("StatefulSet"):
        wanted = as_tuple(item["spec"]["selector"]["matchLabels"])
        assert [name for name, labels in pods.items() if wanted <= labels] == [item["metadata"]["name"]]
    for item in chart.of("PodDisruptionBudget"):
        wanted = as_tuple(item["spec"]["selector"]["matchLabels"])
        assert [name for name, labels in pods.items() if wanted <= labels] == [item["metadata"]["name"]]
    for item in chart.of("Service"):
        wanted = as_tuple(item["spec"]["selector"])
        own = item["metadata"]["name"].removesuffix("-metrics")
        assert [name for name, labels in pods.items() if wanted <= labels] == [own]
    for item in chart.of("NetworkPolicy"):
        wanted = as_tuple(item["spec"]["podSelector"]["matchLabels"])
        assert [name for name, labels in pods.items() if wanted <= labels]
    for item in chart.of("ServiceMonitor"):
        wanted = as_tuple(item["spec"]["selector"]["matchLabels"])
        assert all(wanted <= as_tuple(service["metadata"]["labels"]) for service in chart.of("Service"))


def test_ports_are_served(chart: Objects) -> None:
    ports: dict[str, int] = {}
    for item, _, container in chart.containers():
        own = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert (probe in container) == bool(own)
            if own:
                assert container[probe]["httpGet"]["port"] in own
        for name, variable in (("metrics", "SCORING_METRICS_PORT"), ("http", "SCORING_API_PORT")):
            told = variables(container).get(variable)
            assert (told["value"] if told else None) == (str(own[name]) if name in own else None)
        ports |= {f"{item['metadata']['name']} {name}": port for name, port in own.items()}
    for service in chart.of("Service"):
        for port in service["spec"]["ports"]:
            assert f"{service['metadata']['name'].removesuffix('-metrics')} {port['targetPort']}" in ports
    for monitor in chart.of("ServiceMonitor"):
        served = {port["name"] for service in chart.of("Service") for port in service["spec"]["ports"]}
        assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= served


def test_probes_restart_no_pod_that_waits(chart: Objects) -> None:
    """Only readiness asks the database, so that waiting for it restarts no pod; nor does a slow start."""
    for item in chart.of("Deployment") + chart.of("StatefulSet"):
        (container,) = item["spec"]["template"]["spec"]["containers"]
        if "ports" in container:
            assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
            for probe in ("livenessProbe", "startupProbe"):
                assert container[probe]["httpGet"]["path"] == "/healthz"
                assert container[probe]["periodSeconds"] * container[probe]["failureThreshold"] >= 60


def test_commands_exist(chart: Objects) -> None:
    commands = {parse(container["args"]) for _, _, container in chart.containers()}
    assert "worker" in commands
    assert all("command" not in container for _, _, container in chart.containers())


def test_variables_exist(chart: Objects) -> None:
    """The service knows every `SCORING_*` variable, and every secret variable comes from a Secret."""
    for _, _, container in chart.containers():
        for name, variable in variables(container).items():
            assert not name.startswith("SCORING_") or name in known_variables()
            is_secret = name in secret_variables() | SECRET_VARIABLES or name.endswith("_KEY")
            assert is_secret == ("secretKeyRef" in variable.get("valueFrom", {}))


def test_the_chart_refers_to_secrets_and_creates_none(chart: Objects) -> None:
    assert not chart.of("Secret")
    text = json.dumps(chart.everything)
    named = set(re.findall(r'"secretName": "([^"]+)"', text))
    named |= set(re.findall(r'"(?:secretKeyRef|secret)": \{"name": "([^"]+)"', text))
    for authentication in chart.of("TriggerAuthentication"):
        named |= {reference["name"] for reference in authentication["spec"]["secretTargetRef"]}
    assert "scores" in named
    assert named <= SECRETS_THAT_EXIST


@pytest.mark.parametrize(
    ("components", "secrets"),
    [
        ({"worker", "test"}, {"OPENAI_API_KEY", "SPARE_KEY"}),
        ({"intake", "worker", "test"}, {"SCORING_WRITE_BACK_DATABASE_URL"}),
    ],
    ids=["the judge's keys", "write-back"],
)
def test_few_components_have_a_secret(charts: dict[str, Objects], components: set[str], secrets: set[str]) -> None:
    """Workers alone ask a judge, and write as intake does where a chain has `memory`; `helm test` sees what they have."""
    holders = {
        item["metadata"]["name"]
        for item, _, container in charts["everything"].containers()
        if secrets & set(variables(container))
    }
    assert holders == {f"scoring-{component}" for component in components}


def test_few_pods_take_in_and_many_judge(charts: dict[str, Objects]) -> None:
    """Every role runs somewhere."""
    chart = charts["everything"]
    intake, worker = chart.one("StatefulSet", "scoring-intake"), chart.one("Deployment", "scoring-worker")
    roles = [item["spec"]["template"]["spec"]["containers"][0]["args"] for item in (intake, worker)]
    assert roles == [["worker", "--only", "intake,relay"], ["worker", "--only", "judge"]]
    assert intake["spec"]["replicas"] == 3
    assert chart.one("Service", intake["spec"]["serviceName"])["spec"]["clusterIP"] == "None"


def test_mounts_have_volumes(chart: Objects) -> None:
    """Every mount has a volume, every volume is mounted, and files that variables name are in a mount."""
    for _, spec, container in chart.containers():
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert set(mounts) == {volume["name"] for volume in spec["volumes"]}
        assert len(set(mounts.values())) == len(mounts)
        for name, variable in variables(container).items():
            if name.endswith(("_FILE", "_CONFIG", "_DIR")):
                assert any(variable["value"].startswith(path) for path in mounts.values()), name


def test_pods_follow_the_restricted_standard(chart: Objects) -> None:
    """Kubernetes' restricted standard: no root, no token, no capability, and only /tmp is writable."""
    for _, spec, container in chart.containers():
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        own = container["securityContext"]
        assert own["readOnlyRootFilesystem"] is True
        assert own["allowPrivilegeEscalation"] is False
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]
        assert container["resources"]["requests"]
        assert container["resources"]["limits"]["memory"]


def test_grace_is_longer_than_a_stop(chart: Objects) -> None:
    """The pods that judge, take in or serve end by themselves, also while the database does not answer."""
    for item, spec, container in chart.containers():
        grace_s = spec.get("terminationGracePeriodSeconds")
        if item["metadata"]["name"] == "scoring-worker":
            assert grace_s == int(variables(container)["SCORING_DRAIN_TIMEOUT_S"]["value"]) + STOP_S + MARGIN_S
        if item["metadata"]["name"] == "scoring-intake":
            assert grace_s >= END_S + MARGIN_S
        if item["metadata"]["name"] == "scoring-api":
            _, asleep_s = container["lifecycle"]["preStop"]["exec"]["command"]
            assert grace_s > int(asleep_s) + LONGEST_STOP_S


# --- hooks, scaling, disruption, network ---------------------------------------------------------------


def test_hooks_use_no_object_of_the_release(chart: Objects) -> None:
    """Before an installation none of the chart's ConfigMaps, accounts and volume claims exists; `test` runs later."""
    for item in [hook for hook in chart.hooks if phase(hook) != "test"]:
        spec = item["spec"]["template"]["spec"]
        assert "serviceAccountName" not in spec
        assert all(set(volume) <= {"name", "emptyDir", "secret"} for volume in spec["volumes"])
        assert "configMap" not in json.dumps(item)
        assert "envFrom" not in spec["containers"][0]
    for item in chart.hooks:
        # Helm looks for the log of a pod that is named like the hook.
        assert item["kind"] == ("Pod" if phase(item) == "test" else "Job")
        assert item["metadata"]["annotations"]["helm.sh/hook-delete-policy"].startswith("before-hook-creation")


def test_helm_test_looks_at_the_systems_as_a_worker_does(chart: Objects) -> None:
    """With a worker's variables and files, except its metrics; it runs once, and its log stays until the next run."""
    [pod] = [hook for hook in chart.hooks if phase(hook) == "test"]
    [(spec, container)] = [(spec, c) for item, spec, c in chart.containers() if item is pod]
    worker = chart.one("Deployment", "scoring-worker")["spec"]["template"]["spec"]
    assert container["args"] == ["doctor", "--no-judge"]
    theirs = {n: v for n, v in variables(worker["containers"][0]).items() if not n.startswith("SCORING_METRICS_")}
    assert variables(container) == theirs
    assert container["volumeMounts"] == worker["containers"][0]["volumeMounts"]
    assert spec["serviceAccountName"] == worker["serviceAccountName"]
    assert spec["restartPolicy"] == "Never"
    assert pod["metadata"]["annotations"]["helm.sh/hook-delete-policy"] == "before-hook-creation"


def test_migrations_run_before_and_after_a_release(charts: dict[str, Objects]) -> None:
    phases = {
        phase(item): item["spec"]["template"]["spec"]["containers"][0]["args"]
        for item in charts["minimal"].hooks
        if phase(item) != "test"
    }
    assert phases == {
        "pre-install,pre-upgrade": ["migrate", "--phase", "pre"],
        "post-install,post-upgrade": ["migrate", "--phase", "post"],
    }
    assert [phase(item) for item in charts["bridge"].hooks] == ["test"]  # migrations.enabled: false


def test_one_autoscaler_at_most(chart: Objects) -> None:
    """Without KEDA and HPA, and only then, the Deployment sets replicas; there is at least one worker."""
    scalers = chart.of("ScaledObject") + chart.of("HorizontalPodAutoscaler")
    assert len(scalers) <= 1
    worker = chart.one("Deployment", "scoring-worker")
    assert ("replicas" in worker["spec"]) == (not scalers)
    for scaler in scalers:
        spec = scaler["spec"]
        assert spec["scaleTargetRef"]["name"] == "scoring-worker"
        least = spec.get("minReplicaCount", spec.get("minReplicas"))
        assert 1 <= least <= spec.get("maxReplicaCount", spec.get("maxReplicas"))


def test_keda_scales_by_depth_and_age(charts: dict[str, Objects]) -> None:
    """
    Depth is compared with the slots of a worker, age with seconds; both use an existing Secret's connection.

    There is no fallback number: while the database does not answer, it would stop workers.
    """
    chart = charts["keda"]
    assert "fallback" not in chart.one("ScaledObject", "scoring-worker")["spec"]
    depth, age = chart.one("ScaledObject", "scoring-worker")["spec"]["triggers"]
    assert depth["metadata"]["targetQueryValue"] == "32"
    assert age["metadata"]["targetQueryValue"] == "30"
    assert all('"scoring".session_scores' in trigger["metadata"]["query"] for trigger in (depth, age))
    authentication = chart.one("TriggerAuthentication", depth["authenticationRef"]["name"])
    assert authentication["spec"]["secretTargetRef"] == [
        {"parameter": "connection", "name": "scores-reader", "key": "url"}
    ]


def test_the_api_answers_to_the_names_of_its_service_and_ingress(charts: dict[str, Objects]) -> None:
    def hosts(name: str) -> set[str]:
        [container] = [c for item, _, c in charts[name].containers() if item["metadata"]["name"] == "scoring-api"]
        return set(variables(container)["SCORING_API_HOSTS"]["value"].split(","))

    service = {"scoring-api" + more for more in ("", ".sre", ".sre.svc", ".sre.svc.cluster.local")}
    assert hosts("tokens") == service | {"localhost", "127.0.0.1"}  # a port-forward names loopback
    assert hosts("proxies") == hosts("tokens") | {"scoring.example"}
    assert "scoring.internal.example" in hosts("everything")


def test_network_policies_allow_only_named_traffic(charts: dict[str, Objects]) -> None:
    """No pod is reachable by default, only workers reach judges, only intake sends to others, ports are the values'."""
    chart = charts["secured"]
    everyone = chart.one("NetworkPolicy", "scoring")["spec"]
    assert everyone["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in everyone
    out = {port["port"]: rule.get("to") for rule in everyone["egress"] for port in rule["ports"]}
    assert set(out) == {53, 5432, 9093}
    assert out[9093] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kafka"}}}]
    worker = chart.one("NetworkPolicy", "scoring-worker")["spec"]
    assert [rule["to"] for rule in worker["egress"]] == [[{"ipBlock": {"cidr": "203.0.113.0/24"}}]]
    assert worker["ingress"][0]["ports"] == [{"port": "metrics", "protocol": "TCP"}]
    assert worker["ingress"][0]["from"]
    served, scraped = chart.one("NetworkPolicy", "scoring-api")["spec"]["ingress"]
    assert (served["ports"][0]["port"], scraped["ports"][0]["port"]) == ("http", "metrics")
    assert served["from"][0] == {"podSelector": {}}
    assert len(served["from"]) == 2
    assert scraped["from"] == worker["ingress"][0]["from"]
    [writes] = charts["everything"].one("NetworkPolicy", "scoring-intake")["spec"]["egress"]
    [sends] = charts["everything"].one("NetworkPolicy", "scoring-notify")["spec"]["egress"]
    assert writes == {"ports": [{"port": 6432, "protocol": "TCP"}], "to": [{"ipBlock": {"cidr": "198.51.100.7/32"}}]}
    assert sends == {"ports": [{"port": 8443, "protocol": "TCP"}], "to": [{"ipBlock": {"cidr": "198.51.100.8/32"}}]}


def test_configuration_arrives_as_given(charts: dict[str, Objects]) -> None:
    """The YAML is unchanged, is where SCORING_CONFIG points, and a change of it rolls the pods."""
    chart = charts["everything"]
    wanted = yaml.safe_load(VALUE_SETS["everything"].read_text())["config"]
    assert yaml.safe_load(chart.one("ConfigMap", "scoring-config")["data"]["config.yaml"]) == wanted
    for name in ("scoring-worker", "scoring-api", "scoring-bridge", "scoring-insights"):
        template = chart.one("Deployment", name)["spec"]["template"]
        (container,) = template["spec"]["containers"]
        assert variables(container)["SCORING_CONFIG"]["value"] == "/etc/tarsy-scoring/config/config.yaml"
        assert re.fullmatch(r"[0-9a-f]{64}", template["metadata"]["annotations"]["checksum/config"])
