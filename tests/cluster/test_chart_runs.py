"""The chart in a Kubernetes of its own: every value set comes and goes, and real pods score through a rolling update."""

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml
from aiokafka import AIOKafkaProducer

from infrastructure import wait_until

pytestmark = pytest.mark.skipif("CLUSTER_SESSIONS" not in os.environ, reason="`make test-cluster` starts a cluster")

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
CHART = ROOT / "helm" / "tarsy-scoring"
EXAMPLE = ROOT / "service" / "tarsy_scoring_lab" / "examples" / "demo-oom-checkout.json"
SETS = sorted(path.name for path in (CHART / "ci").glob("*.yaml"))
OURS = (
    "all,configmaps,serviceaccounts,networkpolicies,ingresses,poddisruptionbudgets,"
    "scaledobjects,servicemonitors,prometheusrules"
)
FOLDER = Path(os.environ.get("CLUSTER_SESSIONS", "."))
KAFKA, PATIENCE_S = "10.97.0.21:9092", 240.0
EVENTS = 30


def run(program: str, *arguments: str, given: str | None = None) -> str:
    """Run `helm` or `kubectl`. Raises: AssertionError: It failed; the message has its output."""
    done = subprocess.run(
        [program, *arguments], input=given, capture_output=True, text=True, check=False, timeout=2 * PATIENCE_S
    )
    assert done.returncode == 0, f"{program} {' '.join(arguments)}: {done.stdout[-1500:]}{done.stderr[-1500:]}"
    return done.stdout


def helm(*arguments: str, wait: bool = True) -> str:
    return run("helm", *arguments, *(("--wait", "--timeout", f"{PATIENCE_S:.0f}s") if wait else ()))


def claim_sessions(namespace: str) -> None:
    claim = (HERE / "claim.yaml").read_text().replace("FOLDER", str(FOLDER)).replace("NAMESPACE", namespace)
    run("kubectl", "apply", "-f", "-", given=claim)


@pytest.fixture(scope="module", autouse=True)
def kinds() -> None:
    run("kubectl", "apply", "-f", str(HERE / "kinds.yaml"))
    run("kubectl", "wait", "--for=condition=Established", "crd", "--all")


@pytest.mark.parametrize("values", SETS)
def test_a_value_set_comes_and_goes(values: str) -> None:
    """Under PodSecurity `restricted`: install, upgrade, roll back, uninstall; the pods are those of a node of kwok."""
    namespace = f"set-{values.removesuffix('-values.yaml')}"
    run("kubectl", "create", "namespace", namespace)
    run("kubectl", "label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    if values.startswith("secured"):
        run("kubectl", "-n", namespace, "create", "serviceaccount", "scoring")
    if values.startswith("tokens"):
        claim_sessions(namespace)
    before = run("kubectl", "-n", namespace, "get", OURS, "-o", "name")
    # Helm waits for the address of a load balancer, which nobody gives here.
    release = (
        "r",
        str(CHART),
        "-n",
        namespace,
        "-f",
        str(CHART / "ci" / values),
        "--set",
        "api.service.type=ClusterIP",
    )

    helm("install", *release)
    helm("upgrade", *release, "--set", "worker.slots=7")
    helm("rollback", "r", "1", "-n", namespace)
    refused = run("kubectl", "-n", namespace, "get", "events", "--field-selector", "reason=FailedCreate", "-o", "name")
    helm("uninstall", "r", "-n", namespace)

    assert not refused
    jobs = json.loads(run("kubectl", "-n", namespace, "get", "jobs,pods", "-o", "json"))["items"]
    assert all(one["kind"] == "Pod" or one["spec"]["ttlSecondsAfterFinished"] for one in jobs)
    run("kubectl", "-n", namespace, "delete", "jobs,pods", "--all", "--force", "--grace-period=0")
    assert run("kubectl", "-n", namespace, "get", OURS, "-o", "name") == before


class Release:
    """A release of real pods."""

    arguments = ("ts", str(CHART), "-n", "scoring", "-f", str(HERE / "values.yaml"))

    def __init__(self) -> None:
        service = json.loads(run("kubectl", "-n", "scoring", "get", "service", "ts-api", "-o", "json"))["spec"]
        address = f"http://{service['clusterIP']}:{service['ports'][0]['port']}"
        # Each request with a connection of its own, so that it may meet any pod.
        headers = {"Host": "ts-api", "Connection": "close"}
        self.http = httpx.AsyncClient(base_url=address, headers=headers, timeout=10)

    async def end_session(self, name: str) -> None:
        """Put a finished session into the folder, and its event on Kafka."""
        text = EXAMPLE.read_text("utf-8").replace("demo-oom-checkout", name)
        (FOLDER / f"{name}.json").write_text(text, "utf-8")
        event = {"session_id": name, "event_id": f"e-{name}", "chain_id": "kubernetes"}
        async with AIOKafkaProducer(bootstrap_servers=KAFKA) as producer:
            await producer.send_and_wait("session-completed", json.dumps(event).encode(), name.encode())

    async def is_scored(self, name: str) -> bool:
        answer = await self.http.get(f"/api/v1/scoring/sessions/{name}/score")
        return answer.status_code == 200 and answer.json()["total_score"] is not None


@pytest.fixture(scope="module")
def release() -> Iterator[Release]:
    owner = yaml.safe_dump((ROOT / "compose" / "create-owner.sql").read_text(), default_style='"', width=10**6)
    around = (HERE / "around.yaml").read_text().replace('"OWNER"', owner.strip())
    run("kubectl", "apply", "-f", "-", given=around)
    claim_sessions("scoring")
    run("kubectl", "-n", "around", "wait", "--for=condition=Ready", "pods", "--all", f"--timeout={PATIENCE_S:.0f}s")
    helm("install", *Release.arguments)
    yield Release()
    helm("uninstall", "ts", "-n", "scoring")


async def test_real_pods_score(release: Release) -> None:
    """And `helm test --logs` looks at everything from inside."""
    await release.end_session("first")
    await wait_until(lambda: release.is_scored("first"), PATIENCE_S, "a score")
    assert "migrations" in run("helm", "test", "ts", "-n", "scoring", "--logs", "--timeout", f"{PATIENCE_S:.0f}s")


async def test_a_rolling_update_loses_nothing(release: Release) -> None:
    """An event a second, and pages all the time, while Helm replaces every pod."""
    pages: list[int] = []
    updating = asyncio.create_task(
        asyncio.to_thread(helm, "upgrade", *release.arguments, "--set-string", "podLabels.round=second")
    )

    async def read_pages() -> None:
        while not updating.done():
            pages.append((await release.http.get("/")).status_code)
            await asyncio.sleep(0.2)

    reading = asyncio.create_task(read_pages())
    names = [f"rolling-{number}" for number in range(EVENTS)]
    for name in names:
        await release.end_session(name)
        await asyncio.sleep(1)
    await updating
    await reading
    for name in names:
        await wait_until(lambda name=name: release.is_scored(name), PATIENCE_S, f"the score of {name}")

    assert set(pages) == {200}, (len(pages), pages)


async def test_killed_pods_come_back(release: Release) -> None:
    run("kubectl", "-n", "scoring", "delete", "pods", "--all", "--force", "--grace-period=0")
    await release.end_session("after-kill")

    async def is_scored() -> bool:
        try:
            return await release.is_scored("after-kill")
        except httpx.HTTPError:
            return False  # no pod of the API is back

    await wait_until(is_scored, PATIENCE_S, "a score after all pods were killed")
