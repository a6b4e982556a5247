"""docker-compose.yml on an engine: sessions are scored, also after each service was killed, and nothing is left."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tenacity import retry, retry_if_not_result, stop_after_delay, wait_fixed

docker = pytest.importorskip("docker")
pytestmark = pytest.mark.skipif("COMPOSE_PROGRAM" not in os.environ, reason="`make test-containers` starts an engine")

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "service" / "tarsy_scoring_lab" / "examples"
API = "http://127.0.0.1:8080"
PATIENCE_S = 180
LONG_RUNNING = ("worker", "api", "insights", "judge", "postgres", "kafka")
IDLE_S, MOST_CPU = 30, 0.05
PRODUCE = """
import asyncio, json, sys
from aiokafka import AIOKafkaProducer
async def main():
    async with AIOKafkaProducer(bootstrap_servers="kafka:9092") as producer:
        for name in sys.argv[1:]:
            event = {"session_id": name, "event_id": "e-" + name, "chain_id": "kubernetes"}
            await producer.send_and_wait("session-completed", json.dumps(event).encode(), name.encode())
asyncio.run(main())
"""


@retry(retry=retry_if_not_result(bool), stop=stop_after_delay(PATIENCE_S), wait=wait_fixed(0.5))
def wait_for(condition: Callable[[], bool]) -> bool:
    return condition()


class Stack:
    """The project of docker-compose.yml with its demo, on a folder of sessions that tests add to."""

    def __init__(self, sessions: Path) -> None:
        self._sessions = sessions
        self.engine = docker.from_env()
        self._environ = os.environ | {"SESSIONS": str(sessions)}

    def compose(self, *arguments: str) -> str:
        """Run Docker Compose. Raises: AssertionError: It failed; the message has its last lines."""
        command = [os.environ["COMPOSE_PROGRAM"], "--env-file", "compose/demo.env"]
        command += ["--profile", "demo", "--profile", "insights", *arguments]
        done = subprocess.run(
            command, check=False, cwd=ROOT, env=self._environ, capture_output=True, text=True, timeout=2 * PATIENCE_S
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    def container(self, service: str) -> Any:
        return self.engine.containers.get(f"tarsy-scoring-{service}-1")

    def is_well(self, service: str) -> bool:
        state = self.container(service).attrs["State"]
        return bool(state["Running"] and state.get("Health", {}).get("Status") == "healthy")

    def end_sessions(self, *names: str) -> None:
        """Put finished sessions into the folder, and their events on Kafka."""
        example = (EXAMPLES / "demo-oom-checkout.json").read_text("utf-8")
        for name in names:
            (self._sessions / f"{name}.json").write_text(example.replace("demo-oom-checkout", name), "utf-8")
        done = self.container("api").exec_run(["python", "-c", PRODUCE, *names])
        assert done.exit_code == 0, done.output.decode()[-2000:]

    def is_scored(self, name: str) -> bool:
        try:
            answer = httpx.get(f"{API}/api/v1/scoring/sessions/{name}/score", timeout=5)
        except httpx.HTTPError:
            return False
        return answer.status_code == 200 and answer.json()["total_score"] is not None

    def cpu_s(self) -> dict[str, float]:
        """Seconds of CPU of each running container."""
        stats = {c.name: c.stats(stream=False) for c in self.engine.containers.list()}
        return {name: s["cpu_stats"]["cpu_usage"]["total_usage"] / 1e9 for name, s in stats.items()}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    sessions = tmp_path_factory.mktemp("sessions")
    sessions.chmod(0o755)
    for example in EXAMPLES.glob("*.json"):
        shutil.copy(example, sessions)
    stack = Stack(sessions)
    try:
        stack.compose("up", "--detach", "--no-build")
        for service in LONG_RUNNING:
            wait_for(lambda service=service: stack.is_well(service))
        yield stack
        stack.compose("down", "--volumes")
    finally:
        stack.compose("down", "--volumes", "--timeout", "1")


def test_an_event_becomes_a_score(stack: Stack) -> None:
    """And the pages answer; of the examples, backfill asks for those that are complete."""
    stack.end_sessions("first")
    wait_for(lambda: stack.is_scored("first"))
    wait_for(lambda: stack.is_scored("demo-oom-checkout"))
    for page in ("/", "/week", "/openapi.json"):
        assert httpx.get(API + page, timeout=30).status_code == 200


def test_an_idle_installation_uses_little(stack: Stack) -> None:
    """Each service a few per cent of a core at most; Kafka's own share is not ours."""
    before = stack.cpu_s()
    time.sleep(IDLE_S)
    after = stack.cpu_s()
    used = {name: round((after[name] - before[name]) / IDLE_S, 3) for name in before if "kafka" not in name}
    assert max(used.values()) < MOST_CPU, used


@pytest.mark.parametrize("service", LONG_RUNNING)
def test_a_killed_service_comes_back(stack: Stack, service: str) -> None:
    os.kill(stack.container(service).attrs["State"]["Pid"], signal.SIGKILL)
    restarts = stack.container(service).attrs["RestartCount"]
    wait_for(lambda: stack.container(service).attrs["RestartCount"] > restarts)
    wait_for(lambda: stack.is_well(service))

    stack.end_sessions(f"after-{service}")
    wait_for(lambda: stack.is_scored(f"after-{service}"))


def test_a_stopped_worker_gives_its_sessions_back(stack: Stack) -> None:
    names = [f"in-hand-{number}" for number in range(6)]
    stack.end_sessions(*names)
    stack.compose("stop", "worker")
    assert stack.container("worker").attrs["State"]["ExitCode"] == 0
    stack.compose("start", "worker")
    for name in names:
        wait_for(lambda name=name: stack.is_scored(name))


def test_nothing_is_left(stack: Stack) -> None:
    """Last, since it ends the stack."""
    stack.compose("down", "--volumes")
    of_project = {"filters": {"label": "com.docker.compose.project=tarsy-scoring"}}
    assert not stack.engine.containers.list(all=True, **of_project)
    assert not stack.engine.volumes.list(**of_project)
    assert not stack.engine.networks.list(**of_project)
