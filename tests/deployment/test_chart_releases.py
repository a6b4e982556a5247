"""The chart under other names, on other clusters, and with what a house wants on every object."""

import re

import pytest
from deploying import MINIMAL, VALUE_SETS, Object, Objects, RenderObjects

OPEN = "--set=api.access.open=true"
EVERYTHING = f"--values={VALUE_SETS['everything']}"
DNS_LABEL = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
# A CronJob's name is part of its jobs' names.
LONGEST = {"CronJob": 52}
# Helm takes no longer names than 53.
NAMES = {
    "dots": "scoring.v2.example",
    "digits first": "2024-scoring",
    "digits alone": "1234",
    "as long as can be": "scoring-" + 45 * "x",
    "cut at a dash": "scoring-" + 26 * "x" + "-" + 18 * "y",
}


def label_values(item: Object) -> set[str]:
    """Every label of an object, of its pods and of what selects pods."""
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
def test_every_release_has_names_that_are_accepted(render: RenderObjects, case: str) -> None:
    """Services and pods are named as DNS allows whatever the release is called, and labels are text."""
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


def test_names_of_two_releases_differ(render: RenderObjects) -> None:
    """What is replaced and cut away still tells one release from the other; a plain name stays as it is."""
    long = "scoring-" + 44 * "x"
    releases = ["a.b", "a-b", "r-a-b", long + "y", long + "z", "2a", "r-2a"]
    names = [
        render(*MINIMAL, OPEN, release=release).of("ServiceAccount")[0]["metadata"]["name"] for release in releases
    ]
    assert len(set(names)) == len(names)
    assert names[1] == "a-b"


@pytest.mark.parametrize(
    "tag", ["v1.2.3-", "sha-" + 100 * "0", "_x", 62 * "a" + "-b"], ids=["dash last", "long", "underscore first", "cut"]
)
def test_every_tag_makes_a_label(render: RenderObjects, tag: str) -> None:
    """Tags of images are longer, and end otherwise, than labels may; the image is the one that was meant."""
    chart = render(*MINIMAL, OPEN, f"--set-string=image.tag={tag}")
    assert all(LABEL_VALUE.fullmatch(value) for item in chart.everything for value in label_values(item))
    assert {container["image"].rpartition(":")[2] for _, _, container in chart.containers()} == {tag}


def test_eviction_policy_is_said_where_the_cluster_knows_it(render: RenderObjects) -> None:
    for version, is_there in {"1.25.4": False, "1.26.15-gke.100": False, "1.27.0-eks-1": True, "1.33.1": True}.items():
        budgets = render(*MINIMAL, OPEN, f"--kube-version={version}").of("PodDisruptionBudget")
        assert len(budgets) == 2
        assert all(("unhealthyPodEvictionPolicy" in item["spec"]) == is_there for item in budgets), version


def test_labels_of_the_house_stand_everywhere(render: RenderObjects) -> None:
    chart = render(EVERYTHING, "--set=commonLabels.team=sre", "--set-string=podLabels.mesh=2")
    assert all(item["metadata"]["labels"]["team"] == "sre" for item in chart.everything)
    for item, template in chart.templates():
        assert template["metadata"]["labels"].items() >= {("team", "sre"), ("mesh", "2")}
        assert "mesh" not in item["metadata"]["labels"]
        assert not {"team", "mesh"} & set(item["spec"].get("selector", {}).get("matchLabels", {}))


def test_pods_can_leave_the_user_to_the_cluster(render: RenderObjects) -> None:
    """OpenShift gives each namespace its own users: a default that is set to null is not said, the rest is."""
    nulls = [f"--set=podSecurityContext.{name}=null" for name in ("runAsUser", "runAsGroup", "fsGroup")]
    for _, spec, _ in render(EVERYTHING, *nulls).containers():
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & set(spec["securityContext"])
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for _, spec, _ in render(*MINIMAL, OPEN, "--set=priorityClassName=high").containers():
        assert (spec["securityContext"]["runAsUser"], spec["priorityClassName"]) == (10001, "high")


def test_everything_can_be_placed(charts: dict[str, Objects]) -> None:
    """Whatever makes pods says where they may run, what they carry and mount; migrations and prune are no exception."""
    placed = set()
    for _, template in charts["everything"].templates():
        placed.add(template["metadata"]["labels"]["app.kubernetes.io/component"])
        spec = template["spec"]
        assert spec["nodeSelector"] == {"disktype": "ssd"}
        assert spec["tolerations"] == [{"key": "dedicated", "operator": "Exists"}]
        assert "nodeAffinity" in spec["affinity"]
        assert template["metadata"]["annotations"]["example.com/team"] == "sre"
        assert {"name": "more", "mountPath": "/more", "readOnly": True} in spec["containers"][0]["volumeMounts"]
    assert placed == {"worker", "api", "bridge", "insights", "migrations", "prune"}
