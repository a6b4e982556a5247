"""Metrics are told in the documentation, begin with zero where alerts watch, and log lines give no credentials away."""

import asyncio
import re
import time
from pathlib import Path
from typing import Any, cast, get_args

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from tarsy_scoring import __version__, wiring
from tarsy_scoring.commands import bridge
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.errors import WaitingFor
from tarsy_scoring.queue.admission import Priority
from tarsy_scoring.queue.intake import Intake
from tarsy_scoring.telemetry.metrics import ASKED_BY, DEAD_LETTER_REASONS, HOLDS, Metrics, hide_credentials

ROOT = Path(__file__).resolve().parents[2]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "service" / "tarsy_scoring"
LAG = "tarsy_scoring_consumer_lag_records"


def ours(metrics: Metrics) -> dict[str, MetricWrapperBase]:
    """The list in the code, by the name that Prometheus knows."""
    listed = [m for m in vars(metrics).values() if isinstance(m, MetricWrapperBase)]
    return {m._name + ("_total" if m._type == "counter" else ""): m for m in listed}


def test_the_page_lists_every_metric_with_its_kind_and_labels() -> None:
    """A metric that the operations page does not name is one that nobody will look at; and it names no other."""
    rows = re.findall(r"^\| `(tarsy_scoring_\w+)` \| (\w+) \| ([^|]*) \|", OPERATIONS, re.MULTILINE)
    told = {name: (kind, tuple(re.findall(r"\w+", labels))) for name, kind, labels in rows}

    assert told == {name: (m._type, m._labelnames) for name, m in ours(Metrics()).items()}
    assert len(rows) == len(told)


def test_the_page_names_what_the_process_tells_of_itself() -> None:
    """Memory, processor and files come from the client library."""
    names = {s.name for family in Metrics().registry.collect() for s in family.samples}
    foreign = {n for n in names if not n.startswith("tarsy_scoring_") and not n.endswith("_created")}

    assert "process_resident_memory_bytes" in foreign
    assert [name for name in sorted(foreign) if f"`{name}`" not in OPERATIONS] == []


def test_histograms_end_in_their_unit() -> None:
    """A reader of a percentile need not guess what it is a number of."""
    histograms = [name for name, m in ours(Metrics()).items() if m._type == "histogram"]

    assert histograms
    assert [name for name in histograms if not name.endswith(("_seconds", "_points"))] == []


def test_what_alerts_watch_begins_with_zero() -> None:
    """Prometheus sees no increase in a series that begins with its first count."""
    sample = Metrics().registry.get_sample_value

    assert [sample("tarsy_scoring_dead_letters_total", {"reason": r}) for r in DEAD_LETTER_REASONS] == [0.0] * 7
    assert sample("tarsy_scoring_scores_taken_back_total", {"status": "pending"}) == 0.0
    assert sample("tarsy_scoring_attempts_total", {"outcome": "failed"}) == 0.0
    assert sample("tarsy_scoring_score_delay_seconds_count", {"asked_by": "automatic"}) == 0.0
    assert sample("tarsy_scoring_request_delay_seconds_count", {"source": "session-completed"}) == 0.0


def test_every_reason_of_a_dead_letter_is_known() -> None:
    """Those that the code gives are those that begin with zero."""
    code = "".join((PACKAGE / name).read_text(encoding="utf-8") for name in ("events.py", "intake.py"))

    assert set(re.findall(r'InvalidMessage\("(\w+)"', code)) == set(DEAD_LETTER_REASONS)


def test_who_asked_is_told_by_priority() -> None:
    """The label's words stand in the order of the priorities."""
    assert [p.name.lower() for p in sorted(Priority)] == list(ASKED_BY)


def test_what_holds_a_chain_up_is_known() -> None:
    """Each of them is a series from the beginning; what holds up a single score alone is none."""
    assert set(HOLDS) == {"nothing", *get_args(WaitingFor)} - {"session", "retry"}
    assert Metrics().registry.get_sample_value("tarsy_scoring_queue_due_scores", {"waiting_for": "pause"}) == 0.0


# --- who does what, and since when -----------------------------------------------------------------------


class Listening:
    """Stands where `HealthServer` stands, and keeps what would be served."""

    port = 0
    registry: CollectorRegistry

    def __init__(self, _port: int, registry: CollectorRegistry, *_: Any, **__: Any) -> None:
        Listening.registry = registry

    async def start(self) -> None:
        """Nothing listens."""

    async def stop(self) -> None:
        """Nothing listened."""


async def test_roles_and_the_silence_of_intake_begin_with_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither database nor broker has to answer before somebody can see that they do not."""
    monkeypatch.setattr(wiring, "HealthServer", Listening)
    monkeypatch.setattr(bridge, "HealthServer", Listening)
    dead = "postgresql://nobody@127.0.0.1:9/none"
    settings = load_settings({"SCORING_DATABASE_URL": dead, "SCORING_TIMELINE_DATABASE_URL": dead})
    stopping = asyncio.Event()
    stopping.set()
    before = time.time()

    await wiring.run_worker(settings, ("intake", "relay"), stopping)
    worker = Listening.registry.get_sample_value
    await bridge.run_bridge(settings, None, stopping)
    bridging = Listening.registry.get_sample_value

    assert [worker("tarsy_scoring_role", {"role": r}) for r in ("intake", "relay", "judging")] == [1, 1, None]
    assert (worker("tarsy_scoring_intake_last_pass_timestamp_seconds") or 0) >= before
    assert bridging("tarsy_scoring_role", {"role": "bridge"}) == 1
    assert bridging("tarsy_scoring_intake_last_pass_timestamp_seconds") == 0


class Joining:
    """Stands where `Consumer` stands, from joining until it is stopped."""

    def __init__(self, *, is_served: bool = True) -> None:
        self.is_served = is_served
        self.has_taken = asyncio.Event()

    async def start(self) -> None:
        """Joined at once."""

    async def take(self, _wait_s: float, _limit: int) -> list[Any]:
        self.has_taken.set()
        await asyncio.sleep(0)
        return []

    async def lag(self) -> int:
        return 7

    async def stop(self) -> None:
        """Left."""


@pytest.mark.parametrize(
    ("is_served", "is_paused", "comes_round"),
    [
        pytest.param(True, False, True, id="served"),
        pytest.param(False, False, False, id="brokers-away"),
        pytest.param(False, True, True, id="paused-meanwhile"),
    ],
)
async def test_the_end_of_intake_is_no_silence(is_served: bool, is_paused: bool, comes_round: bool) -> None:
    """It may have long to drain; until then its time stands still where something could come and cannot."""
    settings = load_settings({"SCORING_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"})
    metrics, stopping, consumer = Metrics(), asyncio.Event(), Joining(is_served=is_served)
    intake = Intake(settings, cast(Any, None), cast(Any, None), metrics, clock=lambda: 1000.0)
    intake._is_paused = is_paused
    intake._consumer, intake._room, intake._next_count = cast(Any, consumer), 10, time.monotonic() + 60
    last_pass = "tarsy_scoring_intake_last_pass_timestamp_seconds"
    metrics.intake_last_pass.set(1)

    running = asyncio.create_task(intake.run(stopping))
    for _ in range(2):  # the second pass began after the first was counted
        await asyncio.wait_for(consumer.has_taken.wait(), 30)
        consumer.has_taken.clear()
    working = metrics.registry.get_sample_value(last_pass), metrics.registry.get_sample_value(LAG)
    stopping.set()
    await asyncio.wait_for(running, 30)

    assert working == (1000.0 if comes_round else 1.0, 7.0)
    assert metrics.registry.get_sample_value(last_pass) == 0.0
    assert metrics.registry.get_sample_value(LAG) == 0.0


# --- labels ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chain", "label"),
    [
        pytest.param("kubernetes", "kubernetes", id="configured"),
        pytest.param("made-up-by-a-producer", "other", id="unknown"),
        pytest.param(None, "other", id="none"),
    ],
)
def test_chains_come_from_the_configuration_alone(chain: str | None, label: str) -> None:
    """Events name chains as they like, and each label value is a series that stays."""
    assert Metrics(["kubernetes"]).chain(chain) == label


def test_the_version_is_told() -> None:
    """During a rollout one sees which processes are new."""
    assert Metrics().registry.get_sample_value("tarsy_scoring_build_info", {"version": __version__}) == 1.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("postgresql://me:secret@db:5432/x", "postgresql://***@db:5432/x", id="user-and-password"),
        pytest.param("cannot reach https://token@host/v1", "cannot reach https://***@host/v1", id="token-alone"),
        pytest.param("mail to me@example.com", "mail to me@example.com", id="an-address-is-no-credential"),
        pytest.param("two a://b:c@d e://f:g@h", "two a://***@d e://***@h", id="every-url"),
    ],
)
def test_credentials_in_urls_are_hidden(text: str, expected: str) -> None:
    """Driver errors quote connection strings; a log line never shows their user and password."""
    assert hide_credentials(None, "info", {"reason": text, "n": 1}) == {"reason": expected, "n": 1}
