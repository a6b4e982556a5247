"""One installation for the whole attack run, and a table of the attacks that were tried and that were held off."""

import hashlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import hostile_judge
import pytest
import pytest_asyncio
import yaml
from holding import Attack, Cases
from target import READ, SCORE, Target, exchange

from infrastructure import Kafka, Postgres, fresh_database, fresh_topics, wait_until
from processes import PATIENCE_S, Process, Service
from tarsy_scoring_lab.scripted_judge import MODEL, ScriptedJudge

PROXY = "127.0.0.9/32"  # no request of the attack comes from there
UNLIMITED = {"SCORING_API_RATE_PER_MINUTE": "100000"}


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def target(
    tmp_path_factory: pytest.TempPathFactory, postgres: Postgres, kafka: Kafka, _migrated_template: str
) -> AsyncIterator[Target]:
    """The API; `worker` starts the worker."""
    folder = tmp_path_factory.mktemp("attack")
    digests = {"read": hashlib.sha256(READ.encode()).hexdigest(), "score": hashlib.sha256(SCORE.encode()).hexdigest()}
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps([{"name": scope, "scope": scope, "sha256": digests[scope]} for scope in digests]))
    access = {"SCORING_API_TOKENS_FILE": str(tokens), "SCORING_TRUSTED_PROXIES": PROXY}
    with fresh_database(postgres, _migrated_template) as url:
        async with ScriptedJudge() as judge, ScriptedJudge() as elsewhere, hostile_judge.serving() as hostile_url:
            service = Service(folder, url, fresh_topics(kafka), judge)
            config = folder / "config.yaml"
            config.write_text(yaml.safe_dump(_config(judge, elsewhere, hostile_url)), encoding="utf-8")
            service.env |= {"SCORING_CONFIG": str(config), "SCORING_LOG_LEVEL": "debug"}
            try:
                guarded = service.command("api", SCORING_API_PORT="0", **UNLIMITED, **access)
                metrics_port = (await guarded.says("api.listening"))["metrics_port"]
                yield Target(service, elsewhere, guarded, await _port_when_ready(guarded), metrics_port)
            finally:
                await service.close()


def _config(judge: ScriptedJudge, elsewhere: ScriptedJudge, hostile_url: str) -> dict[str, Any]:
    """Chains whose sessions go to the scripted judge, to another provider, and to each kind of hostile judge."""
    urls = {kind: f"{hostile_url}/{kind}/v1" for kind in hostile_judge.REPLIES}
    urls |= {"main": judge.base_url, "public": elsewhere.base_url}
    providers: dict[str, Any] = {name: {"base_url": url, "model": MODEL} for name, url in urls.items()}
    providers["dripping-reply"]["timeout_s"] = 2
    chains = {name: {"providers": [name]} for name in urls if name != "main"}
    chains["structured"] = {"criteria": "investigation-structured"}
    return {"providers": providers, "defaults": {"providers": ["main"]}, "chains": chains}


async def _port_when_ready(api: Process) -> int:
    port = urlsplit((await api.says("api.listening"))["address"]).port
    assert port is not None

    async def is_ready() -> bool:
        probe = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        return (await exchange(port, probe)).status == 200

    await wait_until(is_ready, PATIENCE_S, f"{api.name} is ready")
    return port


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def worker(target: Target) -> Process:
    """The worker, started by the first test that needs it."""
    worker = target.service.worker()
    await worker.ready()
    return worker


@pytest.fixture
def attack(target: Target, record_property: Callable[[str, Any], None]) -> Attack:
    """Opens a group of attacks by its name. At its end every case must have held, and no process reports a fault."""

    @contextmanager
    def begin(group: str) -> Iterator[Cases]:
        cases = Cases()
        try:
            yield cases
            faults = [line for line in target.logs.splitlines() if "Traceback" in line or '"api.failed"' in line]
            cases("no fault in the logs", not faults, faults)
        finally:
            record_property("attack", [group, cases.count, cases.count - len(cases.broken)])
        assert not cases.broken, "\n".join(cases.broken)

    return begin


class _Table:
    """Collects a row of each group from the reports, which may come from other processes."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, int, int]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self.rows += [value for name, value in report.user_properties if name == "attack"]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.rows:
            terminalreporter.section("attacks")
        for group, cases, held in self.rows:
            mark = "" if cases == held else "  <--"
            terminalreporter.write_line(f"{group:<30} {cases:>5} cases {held:>5} held{mark}")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Table())
