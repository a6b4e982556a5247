"""The chart under unusual release names, on other clusters, and with an organisation's labels."""

import re

import pytest
from deploying import MINIMAL, VALUE_SETS, Object, Objects, RenderObjects

OPEN = "--set=api.access.open=true"
EVERYTHING = f"--values={VALUE_SETS['everything']}"
DNS_LABEL = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
# A CronJob's name is part of its jobs' names.
LONGEST = {"CronJob": 52}
# Helm accepts names of at most 53 characters.
NAMES = {
    "dots": "scoring.v2.example",
    "digits first": "2024-scoring",
    "digits alone": "1234",
    "as long as can be": "scoring-" + 45 * "x",
    "cut at a dash": "scoring-" + 26 * "x" + "-" + 18 * "y",
}


def label_values(item: Object) -> set[str]:
    """The values of every label and label selector in an object."""
    found: set[str] = set()
    if isinstance(item, dict):
        for key, inner in item.items():
            if key in ("labels", "matchLabels") and isinstance(inner, dict):
                found |= set(inner.values())
            else:
                found |= label_values(inner)
    elif isinstance(item, list):
        found = found.union(*(label_values(inner) for inner in item))
    return found


@pytest.mark.parametrize("case", sorted(NAMES))
def test_every_release_name_gives_valid_names(render: RenderObjects, case: str) -> None:
    """Object names are valid DNS labels and label values are valid, whatever the release is called."""
    chart = render(EVERYTHING, release=NAMES[case])
    for item in chart.everything:
        name = item["metadata"]["name"]
        assert DNS_LABEL.fullmatch(name), name
        assert len(name) <= LONGEST.get(item["kind"], 63)
        for value in label_values(item):
            assert isinstance(value, str)
            assert LABEL_VALUE.fullmatch(value), value
    worker = chart.one("ScaledObject", chart.of("ScaledObject")[0]["metadata"]["name"])
    assert worker["spec"]["scaleTargetRef"]["name"] in {d["metadata"]["name"] for d in chart.of("Deployment")}


def test_common_labels_are_on_every_object(render: RenderObjects) -> None:
    chart = render(EVERYTHING, "--set=commonLabels.team=sre", "--set-string=podLabels.mesh=2")
    assert all(item["metadata"]["labels"]["team"] == "sre" for item in chart.everything)
    for item, template in chart.templates():
        assert template["metadata"]["labels"].items() >= {("team", "sre"), ("mesh", "2")}
        assert item is template or "mesh" not in item["metadata"]["labels"]
        assert not {"team", "mesh"} & set(item["spec"].get("selector", {}).get("matchLabels", {}))


def test_pods_can_leave_the_user_to_the_cluster(render: RenderObjects) -> None:
    """OpenShift assigns users by namespace: a default that is set to null is left out, others stay."""
    nulls = [f"--set=podSecurityContext.{name}=null" for name in ("runAsUser", "runAsGroup", "fsGroup")]
    for _, spec, _ in render(EVERYTHING, *nulls).containers():
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & set(spec["securityContext"])
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for _, spec, _ in render(*MINIMAL, OPEN).containers():
        assert spec["securityContext"]["runAsUser"] == 10001


def test_every_pod_has_placement_values(charts: dict[str, Objects]) -> None:
    """Every pod template, migrations, prune and test included, has node selectors, annotations and extra mounts."""
    placed = set()
    for _, template in charts["everything"].templates():
        placed.add(template["metadata"]["labels"]["app.kubernetes.io/component"])
        spec = template["spec"]
        assert spec["nodeSelector"] == {"disktype": "ssd"}
        assert spec["tolerations"] == [{"key": "dedicated", "operator": "Exists"}]
        assert "nodeAffinity" in spec["affinity"]
        assert template["metadata"]["annotations"]["example.com/team"] == "sre"
        assert {"name": "more", "mountPath": "/more", "readOnly": True} in spec["containers"][0]["volumeMounts"]
    assert placed == {"intake", "worker", "api", "bridge", "insights", "notify", "migrations", "prune", "test"}
