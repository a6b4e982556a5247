"""Metrics, readiness and log lines."""

import asyncio
import logging
import re
from pathlib import Path
from typing import Any, cast, get_args, get_type_hints

import pytest
import structlog

from fakes import Room, UnaskedInbox
from tables import table
from tarsy_scoring import __version__
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.errors import WaitingFor
from tarsy_scoring.queue import intake as intake_module
from tarsy_scoring.queue.admission import Priority
from tarsy_scoring.queue.intake import Intake
from tarsy_scoring.telemetry.health import Health
from tarsy_scoring.telemetry.logging import hide_credentials, set_up_logging
from tarsy_scoring.telemetry.metrics import ASKED_BY, HOLDS, Metrics, declarations

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "service" / "tarsy_scoring"
LAG, LAST_PASS = "tarsy_scoring_consumer_lag_records", "tarsy_scoring_intake_last_pass_timestamp_seconds"


# --- metrics -------------------------------------------------------------------------------------------


def test_names_end_in_their_unit() -> None:
    endings = {"counter": "_total", "histogram": ("_seconds", "_points")}
    kinds = {attribute: kind.__name__.lower() for attribute, kind in get_type_hints(Metrics).items()}

    assert kinds.keys() == declarations().keys()
    assert [d.name for a, d in declarations().items() if not d.name.endswith(endings.get(kinds[a], ""))] == []


def test_series_that_alerts_watch_start_at_zero_with_every_label() -> None:
    code = "".join((PACKAGE / name).read_text(encoding="utf-8") for name in ("events.py", "queue/intake.py"))
    starts = {attribute: set(declared.starts_with) for attribute, declared in declarations().items()}

    assert starts["dead_letters"] == set(re.findall(r'InvalidMessage\(\s*"(\w+)"', code))
    assert starts["queue_due"] == set(HOLDS) == {"nothing", *get_args(WaitingFor)} - {"source", "session", "retry"}
    assert starts["score_delay"] == set(ASKED_BY)
    assert [p.name.lower() for p in sorted(Priority)] == list(ASKED_BY)
    assert Metrics().registry.get_sample_value("tarsy_scoring_attempts_total", {"outcome": "failed"}) == 0.0


def test_chain_labels_come_from_the_configuration() -> None:
    metrics = Metrics(["kubernetes"])

    assert [metrics.chain(c) for c in ("kubernetes", "of-a-producer", None)] == ["kubernetes", "other", "other"]
    assert metrics.registry.get_sample_value("tarsy_scoring_build_info", {"version": __version__}) == 1.0


# --- roles and intake ----------------------------------------------------------------------------------


class OneConsumer:
    """Replaces `Consumer`: joins at once and has a lag of 7 records."""

    def __init__(self, *, is_served: bool) -> None:
        self.is_served = is_served

    async def start(self) -> None:
        """Joined."""

    async def take(self, _wait_s: float, _limit: int) -> list[Any]:
        await asyncio.sleep(0)
        return []

    async def lag(self) -> int:
        return 7

    def count_stopped(self, _topic: str) -> dict[str, int]:
        return {"unreadable": 0}

    async def stop(self) -> None:
        """Left."""


@pytest.mark.parametrize(
    ("is_served", "is_paused", "advances"),
    [
        pytest.param(True, False, True, id="served"),
        pytest.param(False, False, False, id="brokers-away"),
        pytest.param(False, True, True, id="paused"),
    ],
)
async def test_the_time_of_the_last_pass_advances_unless_brokers_are_away(
    monkeypatch: pytest.MonkeyPatch, is_served: bool, is_paused: bool, advances: bool
) -> None:
    """It is 0 after the end of intake, since a worker may drain for long."""
    passes = asyncio.Event()

    class Counted(Room):
        count = 0

        async def room(self) -> int:
            self.count += 1
            if self.count == 3:
                passes.set()
            self.is_paused = is_paused
            return 0 if is_paused else 1

    monkeypatch.setattr(intake_module, "Consumer", lambda *_, **__: OneConsumer(is_served=is_served))
    monkeypatch.setattr(intake_module, "PAUSE_CHECK_S", 0)
    settings = load_settings({"SCORING_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"})
    metrics, stopping = Metrics(), asyncio.Event()
    intake = Intake(settings, cast(Any, UnaskedInbox()), cast(Any, Counted()), metrics, clock=lambda: 1000.0)
    metrics.intake_last_pass.set(1)
    sample = metrics.registry.get_sample_value

    running = asyncio.create_task(intake.run(stopping))
    await asyncio.wait_for(passes.wait(), 30)
    working = sample(LAST_PASS), sample(LAG)
    stopping.set()
    await asyncio.wait_for(running, 30)

    assert working == (1000.0 if advances else 1.0, 7.0)
    assert (sample(LAST_PASS), sample(LAG)) == (0.0, 0.0)


async def test_readiness_is_the_first_check_that_fails() -> None:
    health = Health("starting")
    answers: list[str | None] = [None, "second"]

    async def second() -> str | None:
        return answers[1]

    found = [await health.missing()]
    for check in (lambda: answers[0], second):
        health.add(check)
        found.append(await health.missing())
    answers[0] = "first"

    assert [*found, await health.missing()] == ["starting", None, "second", "first"]


# --- log lines -----------------------------------------------------------------------------------------


@table
def test_credentials_in_urls_are_hidden(text: str, expected: str) -> None:
    assert hide_credentials(None, "info", {"reason": text, "n": 1}) == {"reason": expected, "n": 1}


@pytest.mark.parametrize("style", ["console", "json"])
def test_a_traceback_holds_no_values_of_variables(style: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """They may be keys and addresses."""
    url = "ftp://hooks.example/planted7"
    before = structlog.get_config()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        set_up_logging("info", style)
        try:
            raise ValueError(len(url))
        except ValueError:
            structlog.get_logger().exception("attempt.broken")
            logging.getLogger("library").exception("broken")
    finally:
        structlog.configure(**before)
        root.handlers[:] = handlers
        root.setLevel(level)
    said = capsys.readouterr().err

    assert said.count("ValueError") >= 2
    assert "planted7" not in said


def test_failures_of_the_kafka_library_are_logged(capsys: pytest.CaptureFixture[str]) -> None:
    """Its connection errors are not: in an outage it logs several a second."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    library = logging.getLogger("aiokafka.conn")
    try:
        set_up_logging("info", "json")
        library.error("Unable connect to %s", "a:1")
        try:
            raise ValueError("planted")
        except ValueError:
            library.exception("Unexpected error in fetcher routine")
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    said = capsys.readouterr().err

    assert "Unable connect" not in said
    assert "Unexpected error" in said
    assert "planted" in said
