"""
Judges sessions under several criteria and providers, with turns that are recorded in files and asked for
once.

Nothing else is stored. Timeline rules, context and judge are a worker's; the fleet's limits do not
apply.
"""

import asyncio
import hashlib
import os
import tempfile
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import to_json

from tarsy_scoring import errors
from tarsy_scoring.config.chains import ChainSettings
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.judge.ask.client import create_clients
from tarsy_scoring.judge.clock import AttemptClock
from tarsy_scoring.judge.criteria import Criteria
from tarsy_scoring.judge.verdict import Ask, Grounding, Question, Turn
from tarsy_scoring.scoring.durable_judge import asked_hash
from tarsy_scoring.scoring.offline import plan_judgement
from tarsy_scoring.scoring.providers import Case, judge
from tarsy_scoring.studies.judge_bench import BenchSample
from tarsy_scoring.telemetry.stopping import closing
from tarsy_scoring.timeline.clean.masking import masking_of
from tarsy_scoring.timeline.model import Timeline
from tarsy_scoring.timeline.render.fence import new_nonce

# The nonce in the context that a key is made from. A nonce made for the judgement would give another key each
# time.
_KEY_NONCE = "0" * 16


@dataclass(frozen=True, slots=True)
class Job:
    """One judgement for a session. `sample` counts from 1."""

    timeline: Timeline
    criteria: Criteria
    provider: str
    sample: int


@dataclass(frozen=True, slots=True)
class Planned:
    """
    A job before it runs.

    Args:
        key: Names the file with the turns: a hash and the sample's number. None where the session cannot
            be judged, and `reason` says why.
        calls: Calls that are likely still to be made; 0 where the judgement is recorded.
        cost_usd: What these calls cost with the longest answers; None where a price is unknown.
    """

    job: Job
    key: str | None
    calls: int
    cost_usd: float | None
    reason: str | None = None

    @property
    def is_recorded(self) -> bool:
        """Whether a replay gives the judgement."""
        return self.key is not None and not self.calls


class RecordedTurn(BaseModel):
    """An answered question."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    asked_hash: str
    turn: Turn


class Recording(BaseModel):
    """
    The turns in one judgement, in the order in which they were answered.

    `is_complete` is set when the judgement ended without a failed call, so that a replay asks no model.
    """

    model_config = ConfigDict(extra="forbid")

    session_id: str
    criteria: str
    criteria_hash: str
    provider: str
    model: str
    sample: int
    nonce: str
    is_complete: bool = False
    turns: list[RecordedTurn] = []


class Recordings:
    """
    A folder with one file per judgement.

    The files quote sessions, so only their owner may read them. A file is replaced as a whole: a process that
    is killed leaves the old or the new content.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, key: str) -> Recording | None:
        """
        A judgement's recording; None without one.

        Raises:
            ConfigurationError: The file cannot be read or holds something else.
        """
        path = self.folder / f"{key}.json"
        try:
            return Recording.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            raise errors.ConfigurationError(
                f"{path} holds no recorded judgement of this version, or cannot be read; delete it, and its "
                "judgement is made again"
            ) from error

    def write(self, key: str, recording: Recording) -> None:
        """
        Store a recording in place of an earlier one.

        Raises:
            ConfigurationError: The folder cannot be written.
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.folder, suffix=".part")  # readable for the owner only
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(recording.model_dump_json(indent=1).encode())
                os.replace(name, self.folder / f"{key}.json")
            except BaseException:
                with suppress(OSError):
                    os.unlink(name)
                raise
        except OSError as error:
            raise errors.ConfigurationError(
                f"cannot record a judgement in {self.folder}: {error.strerror}; name another folder with --cache"
            ) from error


def plan(settings: Settings, jobs: Sequence[Job], recordings: Recordings) -> list[Planned]:
    """
    Find out which calls one judge's samples for one session still need.

    Args:
        jobs: They differ by `sample` only.

    Raises:
        ConfigurationError: See `Recordings.read`.
    """
    job = jobs[0]
    try:
        planned = plan_judgement(settings, job.criteria, _chain_of(settings, job), job.timeline, _KEY_NONCE)
    except (errors.Unscorable, errors.RetryLater) as error:
        return [Planned(job, None, 0, 0.0, _reason(error)) for job in jobs]
    provider = settings.config.providers[job.provider]
    who = {
        "criteria": job.criteria.criteria_hash,
        "context": [m.digest.hex() for m in planned.messages],
        "provider": job.provider,
        "model": provider.model,
        "temperature": provider.temperature,
        "max_reply_tokens": provider.max_reply_tokens,
    }

    same, found = hashlib.sha256(to_json(who)).hexdigest(), list[Planned]()
    for job in jobs:
        key = f"{same}-{job.sample}"
        recorded = recordings.read(key)
        is_recorded = recorded is not None and recorded.is_complete
        calls, cost_usd = (0, 0.0) if is_recorded else (planned.calls, planned.cost_usd)
        found.append(Planned(job, key, calls, cost_usd))
    return found


AskOf = Callable[[Job], Ask]
"""Makes the `Ask` that calls a model for one judgement."""


@asynccontextmanager
async def live_judges(settings: Settings, planned: Sequence[Planned]) -> AsyncIterator[AskOf]:
    """
    Call the configured providers; a replay needs no key.

    Raises:
        ConfigurationError: See `create_clients`.
    """
    clients = create_clients(settings) if any(one.calls for one in planned) else {}

    def ask_of(job: Job) -> Ask:
        clock = AttemptClock(settings.attempt_timeout_s)  # a judgement has as much time as one attempt
        return lambda question: clients[job.provider].ask(question, clock=clock)

    async with closing(*clients.values()):
        yield ask_of


async def judge_all(
    settings: Settings,
    planned: Sequence[Planned],
    recordings: Recordings,
    ask_of: AskOf,
    on_done: Callable[[], None],
) -> list[BenchSample]:
    """
    Make all judgements; returns them in the order of `planned`.

    Recorded turns are replayed, and each new turn is recorded before the next question, so that a run that
    was stopped continues where it was. Samples for one session are made one after another, so that the
    provider's prompt cache serves them.

    Args:
        on_done: Called after each judgement.

    Raises:
        ConfigurationError: A recording cannot be read or written, or a key is missing.
    """
    # Sessions with the same content have the same keys, so their samples are in one group as well.
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for i, one in enumerate(planned):
        groups[(one.key or "").partition("-")[0]].append(i)
    room = asyncio.Semaphore(settings.slots)
    found: dict[int, BenchSample] = {}

    async def judge_samples(places: Iterable[int]) -> None:
        async with room:
            for i in places:
                found[i] = await _judge(settings, planned[i], recordings, ask_of)
                on_done()

    try:
        async with asyncio.TaskGroup() as tasks:
            for places in groups.values():
                tasks.create_task(judge_samples(places))
    except* errors.ConfigurationError as failed:
        raise failed.exceptions[0] from None
    return [found[i] for i in range(len(planned))]


async def _judge(settings: Settings, planned: Planned, recordings: Recordings, ask_of: AskOf) -> BenchSample:
    job = planned.job
    if planned.key is None:
        return BenchSample(None, planned.reason)
    recording = recordings.read(planned.key) or Recording(
        session_id=job.timeline.session_id,
        criteria=job.criteria.name,
        criteria_hash=job.criteria.criteria_hash,
        provider=job.provider,
        model=settings.config.providers[job.provider].model,
        sample=job.sample,
        nonce=new_nonce(),
    )
    ask = _RecordedAsk(recording, ask_of(job), lambda: recordings.write(planned.key or "", recording))
    case = Case(
        *(job.timeline, recording.nonce, _chain_of(settings, job), job.criteria, settings.config.providers),
        lambda _provider, _context: ask,
        masking=masking_of(settings.config.masking_patterns),
    )
    total, reason, is_outstanding, grounding = None, None, False, Grounding(0, 0)
    try:
        # The next run is another attempt only for a turn without which there is no score.
        judged = await judge(case, lambda _error: True)
        total, grounding = judged.verdict.total_score, judged.verdict.grounding or grounding
    except errors.AttemptError as error:
        reason, is_outstanding = _reason(error), not isinstance(error, errors.Unscorable)
    if not recording.is_complete and not ask.has_failed:
        recording.is_complete = True
        recordings.write(planned.key, recording)
    return BenchSample(
        total,
        reason,
        grounding.checked,
        grounding.held,
        cost_usd=_cost_of([r.turn for r in recording.turns]),
        seconds=sum(r.turn.latency_ms for r in recording.turns) / 1000,
        is_outstanding=is_outstanding,
    )


def _cost_of(turns: Sequence[Turn]) -> float | None:
    costs = [t.cost_usd for t in turns if t.cost_usd is not None]
    return sum(costs) if turns and len(costs) == len(turns) else None


class _RecordedAsk:
    """
    Answers from the recording, else asks and records the turn.

    `has_failed` is set when a call gave no turn. A prompt that is too long does not count: a smaller one
    follows.
    """

    def __init__(self, recording: Recording, ask: Ask, store: Callable[[], None]) -> None:
        self._recording, self._ask, self._store = recording, ask, store
        self._left: defaultdict[str, deque[Turn]] = defaultdict(deque)
        for recorded in recording.turns:
            self._left[recorded.asked_hash].append(recorded.turn)
        self.has_failed = False

    async def __call__(self, question: Question) -> Turn:
        asked = asked_hash(question.kind, question.messages)
        if known := self._left[asked]:
            return known.popleft()
        try:
            turn = await self._ask(question)
        except errors.PromptTooLong:
            raise
        except errors.ScoringError:
            self.has_failed = True
            raise
        self._recording.turns.append(RecordedTurn(asked_hash=asked, turn=turn))
        self._store()
        return turn


def _chain_of(settings: Settings, job: Job) -> ChainSettings:
    """The settings of the session's chain, with one sample by the job's judge."""
    judged_by = {"criteria": job.criteria.name, "providers": (job.provider,), "judge": True}
    return settings.chain(job.timeline.chain_id).model_copy(update=judged_by | {"samples": 1})


def _reason(error: errors.AttemptError) -> str:
    return f"{error.error_kind}: {error}"
