"""
Remembers scored sessions: asks the judge for lessons, and writes them into TARSy's memory.

Laws. It follows the positions of `scoring_events`, as the write-back does, in one process at a time, so that
a score has ended and never waits. The reply is stored before TARSy's database changes, so that a crash
repeats a write and no question. A judge or a session that fails costs the lessons of this score; an outage of
TARSy, the source or the embeddings, and a model that does not fit, are waited for.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import asyncpg
import structlog

from tarsy_scoring.config.chains import MemorySettings
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import AttemptError, ScoringError, WaitFor
from tarsy_scoring.judge.ask.endpoint import EmbeddingsAway
from tarsy_scoring.judge.clock import AttemptClock
from tarsy_scoring.judge.conversation import Conversation
from tarsy_scoring.judge.read.json_reply import say_json
from tarsy_scoring.judge.verdict import Message, Question, Turn
from tarsy_scoring.memory.lessons import REPLY_FORMAT, Reply, question, read_lessons
from tarsy_scoring.memory.tables import MemoryRefused, MemoryTables
from tarsy_scoring.postgres.database import DatabaseAway
from tarsy_scoring.postgres.leader import AdvisoryLock
from tarsy_scoring.queue.store import StoredTurn
from tarsy_scoring.scoring.attempt import Scorer
from tarsy_scoring.scoring.columns import sum_usage
from tarsy_scoring.scoring.durable_judge import ScorePermits, asked_hash, count_failure, count_turn
from tarsy_scoring.scoring.providers import Case, Mask, in_fitting_context
from tarsy_scoring.tarsy.database import TarsyAway, TarsyUnfit
from tarsy_scoring.telemetry.stopping import unless_stopped
from tarsy_scoring.timeline.clean.masking import mask_secrets, masking_of
from tarsy_scoring.timeline.render.context import FittedContext

log = structlog.get_logger()

POLL_S, RETRY_S = 2.0, 30.0
WINDOW = 300  # scoring events per pass
EMBEDDED_CHARACTERS = 4_000  # of a final analysis; models of embeddings read some 2,000 tokens
HOSTILE = ["injection_suspected", "tampering_suspected"]

LOCK = AdvisoryLock("tarsy-scoring memory")

# The first bookmark is at the present position.
BOOKMARK = """
INSERT INTO {schema}.write_back_bookmark AS b (follower, position)
SELECT 'memory', position FROM {schema}.relay_position
ON CONFLICT (follower) DO UPDATE SET position = b.position RETURNING position
"""
MOVE = "UPDATE {schema}.write_back_bookmark SET position = $1 WHERE follower = 'memory'"

# The next events, with the score where it is the session's first and may teach something; not those of weeks
# in which memory was switched off.
NEXT = """
WITH next AS MATERIALIZED (
  SELECT position, score_id, type FROM {schema}.scoring_events WHERE position > $1 ORDER BY position LIMIT $2
)
SELECT n.position, s.*, m.alert_type
FROM next n LEFT JOIN ({schema}.session_scores s JOIN {schema}.sessions m USING (session_id))
  ON s.score_id = n.score_id AND n.type = 'scoring.completed' AND s.status = 'completed'
  AND s.purpose = 'production' AND s.total_score IS NOT NULL AND s.reference IS NULL
  AND NOT s.flags ?| $3::text[] AND s.completed_at > now() - interval '1 day'
  AND NOT EXISTS (SELECT FROM {schema}.session_scores p WHERE p.session_id = s.session_id
    AND p.status = 'completed' AND p.purpose = 'production' AND p.completed_at < s.completed_at)
ORDER BY n.position
"""

Score = Mapping[str, Any]  # a row of `NEXT`
VectorsOf = Callable[[list[str]], Awaitable[list[list[float]]]]
WAITED_FOR = (TarsyAway, TarsyUnfit, EmbeddingsAway, MemoryRefused)


def memories_of(settings: Settings) -> list[MemorySettings]:
    """The models that chains embed memories with, each once."""
    return list(dict.fromkeys(c.memory for c in settings.config.named_chains.values() if c.memory))


class Memories:
    """The memory of this process: it works, or stands by while another process works."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self._settings = scorer.settings
        self._store = scorer.store
        self._database = scorer.store.database
        self._masking = masking_of(scorer.settings.config.masking_patterns)
        self._tables = MemoryTables(scorer.settings)
        self._unchecked = memories_of(scorer.settings)

    async def run(self, stopping: asyncio.Event) -> None:
        """Remember until `stopping` or a cancel; another process, or the next start, goes on."""
        try:
            while not stopping.is_set():
                pause_s = RETRY_S
                try:
                    await LOCK.lead(self._database, self.run_once)
                    pause_s = POLL_S
                except DatabaseAway as error:
                    self._database.note_away(error)
                except WAITED_FOR as error:
                    log.warning("memory.waiting", reason=str(error), retry_in_s=RETRY_S)
                except Exception as error:  # outermost loop: no score may depend on it
                    log.error("memory.failed", error=type(error).__name__, exc_info=True)
                await unless_stopped(asyncio.sleep(pause_s), stopping)
        finally:
            await self._tables.close()

    async def run_once(self) -> None:
        """
        Remember the scores that the next events completed.

        Raises:
            DatabaseAway, TarsyAway, TarsyUnfit, EmbeddingsAway, MemoryRefused: The bookmark
                stands before a score that is not remembered. A repeated call uses the stored reply.
        """
        [bookmark] = await self._database.fetch(BOOKMARK)
        while self._unchecked:
            await self._tables.check(self._unchecked[-1], self._scorer.clients)
            self._unchecked.pop()
        rows = await self._database.fetch(NEXT, bookmark["position"], WINDOW, HOSTILE)
        for row in rows:
            chain = self._settings.chain(row["chain_id"])
            if row["score_id"] and chain.memory:
                await self._remember(dict(row), chain.memory)
                await self._database.fetch(MOVE, row["position"])
        if rows:
            await self._database.fetch(MOVE, rows[-1]["position"])

    async def _remember(self, score: Score, memory: MemorySettings) -> None:
        """Remember one score, or log why not. Raises: See `run_once`."""
        names = {"score_id": str(score["score_id"]), "session_id": score["session_id"]}
        permits = ScorePermits(self._scorer.limits, score["chain_id"], score["score_id"])
        client = self._scorer.clients[memory.embedding_provider]
        vectors_of = partial(client.embed, model=memory.model, dimensions=memory.dimensions, permits=permits)
        try:
            reply = await self._reply(score, permits, vectors_of)
            lessons = read_lessons(reply, score["nonce"], self._masking)
            if lessons is None:
                raise ScoringError("the stored reply does not fit the form")
            texts = [lesson.content for lesson in lessons.created.values()]
            vectors = await vectors_of(texts) if texts else []
            await self._tables.write(score, lessons, vectors)
            counts = {n: len(getattr(lessons, n)) for n in ("created", "reinforced", "deprecated")}
            log.info("memory.remembered", **names, **counts, refused=lessons.refused)
        except WAITED_FOR:
            raise
        except (ScoringError, asyncpg.IntegrityConstraintViolationError, asyncpg.DataError) as error:
            reason = str(error) if isinstance(error, ScoringError) else type(error).__name__
            log.warning("memory.skipped", **names, reason=reason)

    async def _reply(self, score: Score, permits: ScorePermits, vectors_of: VectorsOf) -> str:
        """The reply about a score: the stored one, or a new one, which is stored. Raises: ScoringError."""
        scorer, score_id, nonce = self._scorer, score["score_id"], score["nonce"]
        turns = await self._store.stored_turns(score_id)
        for stored in reversed(turns):
            if stored.turn.kind == "memory":
                return stored.turn.reply
        chain, clock = self._settings.chain(score["chain_id"]), AttemptClock(self._settings.attempt_timeout_s)
        try:
            timeline = await scorer.source.fetch_timeline(score["session_id"], clock)
        except WaitFor as error:
            raise TarsyAway(str(error)) from error
        about = mask_secrets(timeline.final_analysis or score["score_analysis"], self._masking)
        [vector] = await vectors_of([about[:EMBEDDED_CHARACTERS]])
        asked = question(await self._tables.nearest(score["chain_id"], vector), nonce, self._masking)
        criteria = scorer.registry.of_chain(chain, score["criteria"])
        judges = [s.turn.provider for s in turns if s.turn.provider in chain.providers]
        provider, factor = (judges or chain.providers)[0], scorer.limits.token_factor

        async def ask(context: FittedContext, one: Question) -> Turn:
            one, client = replace(one, kind="memory"), scorer.clients[provider]
            try:
                turn = await client.ask(one, clock=clock, permits=permits, token_factor=factor(provider))
            except AttemptError as error:
                count_failure(scorer.metrics, provider, error)
                raise
            count_turn(scorer.metrics, turn, score["chain_id"])
            key = criteria.criteria_hash, context.context_hash, nonce, asked_hash("memory", one.messages)
            turns.append(StoredTurn(len(turns) + 1, *key, turn))
            usage = sum_usage(s.turn for s in turns)
            await self._store.add_turn(score_id, score["attempt"], turns[-1], usage)
            return turn

        async def converse(context: FittedContext, _mask: Mask) -> str:
            if context.injections:
                raise ScoringError("the session holds text that addresses a model")
            # The opening is the judge's, byte for byte: the provider's cache may hold it.
            evaluation = Message("assistant", f"{score['score_analysis']}\n\n{score['total_score']}")
            messages = [*criteria.open_conversation(context), evaluation, Message("user", asked)]
            asking, most = case.ask_of(provider, context), chain.max_reminders
            said = Conversation(asking, messages, REPLY_FORMAT, max_reminders=most)
            return (await say_json(said, "memory", Reply))[1].reply

        what = timeline, nonce, chain, criteria, self._settings.config.providers
        case = Case(*what, lambda _, context: partial(ask, context), factor, self._masking)
        return await in_fitting_context(provider, case, converse)
