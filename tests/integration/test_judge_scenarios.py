"""Every way an endpoint may answer, played by the scripted judge, and how the attempt ends, on a real database."""

import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tarsy_scoring.config.load import load_settings
from tarsy_scoring.events import SOURCE_COMPLETED
from tarsy_scoring.judge.llm import JudgeClient
from tarsy_scoring.limits.fleet import Limits
from tarsy_scoring.queue.admission import Request
from tarsy_scoring.scoring.attempt import Finished, Scorer
from tarsy_scoring.timeline.files import SessionFiles
from tarsy_scoring.wiring import Parts, open_parts
from tarsy_scoring_lab.scripted_judge import Fault, ScriptedJudge

SESSION = "demo-oom-checkout"
CONFIG = """
providers:
  main:
    base_url: "{base_url}"
    api_key_env: null
    model: scripted-judge
    temperature: 0.2
chains:
  free: {{criteria: investigation-methodology}}
  json: {{criteria: investigation-structured}}
"""
Row = dict[str, Any]


@dataclass
class Service:
    """One worker's parts, driven attempt by attempt; pauses of the client are noted and not slept."""

    parts: Parts
    scorer: Scorer
    judge: ScriptedJudge
    slept_s: list[float] = field(default_factory=list)

    async def attempt(self, chain: str, *faults: Fault) -> tuple[Finished, Row]:
        self.judge.script(*faults)
        request = Request(uuid.uuid4(), SESSION, SOURCE_COMPLETED, session_status="completed", chain_id=chain)
        await self.parts.inbox.accept([request])
        (claimed,) = await self.parts.leases.claim_due(uuid.uuid4(), 1, 60)
        finished = await self.scorer.attempt(claimed)
        row = await self.parts.reader.newest_score(SESSION)
        return finished, row


@pytest.fixture
async def service(database_url: str, judge: ScriptedJudge, tmp_path: Path) -> AsyncIterator[Service]:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG.format(base_url=judge.base_url), "utf-8")
    settings = load_settings({"SCORING_DATABASE_URL": database_url, "SCORING_CONFIG": str(config)})
    slept_s: list[float] = []

    async def sleep(seconds: float) -> None:
        slept_s.append(seconds)

    client = JudgeClient("main", settings.config.providers["main"], None, sleep=sleep)
    source = SessionFiles(Path(str(files("tarsy_scoring_lab") / "examples")))
    async with open_parts(settings) as parts:
        limits = Limits(parts.database, settings)
        scorer = Scorer(
            settings=settings,
            leases=parts.leases,
            store=parts.store,
            source=source,
            registry=parts.registry,
            clients={"main": client},
            metrics=parts.metrics,
            limits=limits,
        )
        yield Service(parts, scorer, judge, slept_s)
    await client.close()


def reply(content: str, turn: Any = "analysis", times: int | None = None) -> Fault:
    return Fault(kind="reply", content=content, turn=turn, times=times)


def status(http: int, times: int | None = None, *, headers: dict[str, str] | None = None, **error: Any) -> Fault:
    body = {"error": error} if error else None
    return Fault(kind="status", status=http, times=times, headers=headers or {}, json=body)


def in_an_hour_less(seconds: float) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


COMPLETED: dict[str, tuple[str, list[Callable[[], Fault]], set[str]]] = {
    "strict JSON": ("json", [], set()),
    "cut JSON once": ("json", [lambda: Fault(kind="cut", times=1)], set()),
    "no response_format at all": ("json", [lambda: Fault(kind="no_response_format")], set()),
    "429 as a date": ("free", [lambda: status(429, 1, headers={"retry-after": in_an_hour_less(3)})], set()),
    "500 twice": ("free", [lambda: status(500, 2)], set()),
    "an input silently cut": ("free", [lambda: Fault(kind="truncated_input")], {"input_truncated_by_provider"}),
    "a model that changes": (
        "free",
        [lambda: Fault(kind="served_model", turn="missing_tools", model="another")],
        {"model_changed"},
    ),
    "numbers that never agree": ("json", [lambda: Fault(kind="breakdown_mismatch")], {"breakdown_mismatch"}),
    "missing tools refused": (
        "free",
        [lambda: Fault(kind="refusal", turn="missing_tools")],
        {"missing_tools_unavailable"},
    ),
    "too long, with a code": (
        "free",
        [lambda: status(400, 1, code="context_length_exceeded", message="too long")],
        {"context_shortened"},
    ),
}


@pytest.mark.parametrize(("chain", "faults", "flags"), COMPLETED.values(), ids=COMPLETED.keys())
async def test_what_can_be_mended_ends_in_a_score(
    service: Service, chain: str, faults: list[Callable[[], Fault]], flags: set[str]
) -> None:
    finished, row = await service.attempt(chain, *(make() for make in faults))

    assert (finished.outcome, row["error_message"]) == ("completed", None)
    assert row["total_score"] is not None
    assert set(row["flags"]) == flags
    assert row["judge_fingerprint"]


FAILED: dict[str, tuple[str, list[Callable[[], Fault]], str]] = {
    "a refusal": ("free", [lambda: Fault(kind="refusal")], "refused"),
    "a filter": ("free", [lambda: Fault(kind="content_filter")], "content_filtered"),
    "cut JSON": ("json", [lambda: Fault(kind="cut")], "answer_cut"),
    "thinking up to the limit": (
        "free",
        [
            lambda: Fault(
                kind="status",
                status=200,
                json={
                    "choices": [{"finish_reason": "length", "message": {"role": "assistant", "content": ""}}],
                    "usage": {
                        "prompt_tokens": 9,
                        "completion_tokens": 8000,
                        "completion_tokens_details": {"reasoning_tokens": 8000},
                    },
                },
            )
        ],
        "answer_cut",
    ),
    "tool calls for ever": ("free", [lambda: Fault(kind="tool_calls")], "no_score_in_answer"),
    "neither spelling of the limit": (
        "free",
        [
            lambda: status(400, 1, code="unsupported_parameter", param="max_tokens"),
            lambda: status(400, code="unsupported_parameter", param="max_completion_tokens"),
        ],
        "judge_rejected_request",
    ),
    "too long whatever is cut": ("free", [lambda: status(400, code="context_length_exceeded")], "context_too_long"),
}


@pytest.mark.parametrize(("chain", "faults", "kind"), FAILED.values(), ids=FAILED.keys())
async def test_what_cannot_be_mended_ends_without_a_number(
    service: Service, chain: str, faults: list[Callable[[], Fault]], kind: str
) -> None:
    finished, row = await service.attempt(chain, *(make() for make in faults))

    assert (finished.outcome, row["status"], row["error_kind"], row["total_score"]) == ("failed", "failed", kind, None)
    assert row["error_message"]


PUT_BACK: dict[str, tuple[list[Callable[[], Fault]], str, int]] = {
    "429 for ten minutes": ([lambda: status(429, headers={"retry-after": "600"})], "rate_limit", 0),
    "no quota": ([lambda: status(429, code="insufficient_quota")], "quota", 0),
    "a wrong key": ([lambda: status(401)], "key", 0),
    "500 for ever": ([lambda: status(500)], "retry", 1),
}


@pytest.mark.parametrize(("faults", "waiting_for", "burned"), PUT_BACK.values(), ids=PUT_BACK.keys())
async def test_what_may_pass_is_waited_for(
    service: Service, faults: list[Callable[[], Fault]], waiting_for: str, burned: int
) -> None:
    began = datetime.now(UTC)
    finished, row = await service.attempt("free", *(make() for make in faults))

    assert finished.outcome == "put_back"
    assert (row["status"], row["waiting_reason"], row["attempts_burned"]) == ("pending", waiting_for, burned)
    assert row["next_attempt_at"] > began + timedelta(seconds=1)


async def test_a_wrong_key_stops_the_next_score_before_it_calls(service: Service) -> None:
    """The circuit is open at once and for the whole fleet, so nothing more is sent with that key."""
    await service.attempt("free", status(401))
    calls = service.judge.calls
    await service.parts.database.once(lambda c: c.execute("UPDATE session_scores SET next_attempt_at = now()"))

    (claimed,) = await service.parts.leases.claim_due(uuid.uuid4(), 1, 60)
    finished = await service.scorer.attempt(claimed)

    assert (finished.outcome, finished.fields["waiting_for"]) == ("put_back", "key")
    assert service.judge.calls == calls
