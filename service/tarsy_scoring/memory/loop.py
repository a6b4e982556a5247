"""
Remembers scored sessions: asks the judge for lessons, and writes them into TARSy's memory.

Laws. It follows the positions of `scoring_events`, as the write-back does, in one process at a time, so that
a score has ended and never waits. The reply is stored before TARSy's database changes, so that a crash
repeats a write and no question. A judge or a session that fails costs the lessons of this score. An outage of
TARSy, the source or the embeddings, a row that TARSy refuses and a model that does not fit are waited for,
at most a day: then the score is too old.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import asyncpg
import structlog

from tarsy_scoring.config.chains import MemorySettings
from tarsy_scoring.errors import AttemptError, ScoringError, Unscorable
from tarsy_scoring.judge.clock import AttemptClock
from tarsy_scoring.judge.verdict import Message, Question
from tarsy_scoring.memory.lessons import REPLY_FORMAT, question, read_lessons
from tarsy_scoring.memory.tables import Score, check_models, nearest, open_memories, write
from tarsy_scoring.postgres.database import DatabaseAway
from tarsy_scoring.postgres.leader import AdvisoryLock
from tarsy_scoring.queue.store import StoredTurn
from tarsy_scoring.scoring.attempt import Scorer
from tarsy_scoring.scoring.columns import sum_usage
from tarsy_scoring.scoring.durable_judge import ScorePermits, count_turn
from tarsy_scoring.scoring.providers import Case, Mask, in_fitting_context
from tarsy_scoring.telemetry.stopping import unless_stopped
from tarsy_scoring.timeline.clean.masking import mask_secrets, masking_of
from tarsy_scoring.timeline.render.context import FittedContext

log = structlog.get_logger()

POLL_S, RETRY_S = 2.0, 30.0
WINDOW = 300  # scoring events per pass
EMBEDDED_CHARACTERS = 4_000  # of a final analysis; models of embeddings read some 2,000 tokens

LOCK = AdvisoryLock("tarsy-scoring memory")

# The first bookmark is at the present position.
BOOKMARK = """
INSERT INTO {schema}.write_back_bookmark AS b (follower, position)
SELECT 'memory', position FROM {schema}.relay_position
ON CONFLICT (follower) DO UPDATE SET position = b.position RETURNING position
"""
MOVE = "UPDATE {schema}.write_back_bookmark SET position = $1 WHERE follower = 'memory'"

# Of the next events the last one, and those with a session's first score, if it may teach something; not
# those of weeks in which memory was switched off.
NEXT = """
WITH next AS MATERIALIZED (
  SELECT position, score_id, type FROM {schema}.scoring_events WHERE position > $1 ORDER BY position LIMIT $2
)
SELECT n.position, s.*, m.alert_type
FROM next n LEFT JOIN ({schema}.session_scores s JOIN {schema}.sessions m USING (session_id))
  ON s.score_id = n.score_id AND n.type = 'scoring.completed' AND s.status = 'completed'
  AND s.purpose = 'production' AND s.total_score IS NOT NULL AND s.reference IS NULL
  AND NOT s.flags ?| ARRAY['injection_suspected', 'tampering_suspected']
  AND s.completed_at > now() - interval '1 day'
  AND NOT EXISTS (SELECT FROM {schema}.session_scores p WHERE p.session_id = s.session_id
    AND p.status = 'completed' AND p.purpose = 'production' AND p.completed_at < s.completed_at)
WHERE s.score_id IS NOT NULL OR n.position = (SELECT max(position) FROM next)
ORDER BY n.position
"""

Embed = Callable[[list[str]], Awaitable[list[Any]]]


class Memories:
    """The memory of this process: it works, or stands by while another process works."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self._settings = scorer.settings
        self._database = scorer.store.database
        self._masking = masking_of(scorer.settings.config.masking_patterns)
        self._tarsy = open_memories(scorer.settings)
        self._is_checked = False

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
                except (ScoringError, asyncpg.PostgresError) as error:
                    # Not `str`: PostgreSQL's detail quotes rows.
                    log.warning("memory.waiting", reason=error.args[0], retry_in_s=RETRY_S)
                except Exception as error:  # outermost loop: no score may depend on it
                    log.error("memory.failed", error=type(error).__name__, exc_info=True)
                await unless_stopped(asyncio.sleep(pause_s), stopping)
        finally:
            await self._tarsy.close()

    async def run_once(self) -> None:
        """
        Remember the scores that the next events completed.

        Raises:
            DatabaseAway, ScoringError, asyncpg.PostgresError: The bookmark stands before a score that is not
                remembered. A repeated call uses the stored reply.
        """
        [bookmark] = await self._database.fetch(BOOKMARK)
        if not self._is_checked:
            await check_models(self._tarsy, self._settings, self._scorer.clients)
            self._is_checked = True
        for row in await self._database.fetch(NEXT, bookmark["position"], WINDOW):
            memory = self._settings.chain(row["chain_id"]).memory
            if row["score_id"] and memory:
                await self._remember(dict(row), memory)
            await self._database.fetch(MOVE, row["position"])

    async def _remember(self, score: Score, memory: MemorySettings) -> None:
        """Remember one score, or log why not. Raises: See `run_once`."""
        bound = log.bind(score_id=str(score["score_id"]), session_id=score["session_id"])
        permits = ScorePermits(self._scorer.limits, score["chain_id"], score["score_id"])
        embed = partial(self._scorer.clients[memory.embedding_provider].embed, by=memory, permits=permits)
        try:
            lessons = read_lessons(await self._reply(score, permits, embed), self._masking)
            if lessons is None:
                raise Unscorable("the stored reply does not fit the form, or addresses a model")
            texts = [lesson.content for lesson in lessons.create]
            await write(self._tarsy, score, lessons, await embed(texts) if texts else [])
            bound.info("memory.remembered", **{name: len(part) for name, part in lessons})
        except AttemptError as error:
            if error.word == "source":
                raise
            bound.warning("memory.skipped", reason=str(error))

    async def _reply(self, score: Score, permits: ScorePermits, embed: Embed) -> str:
        """The reply about a score: the stored one, or a new one, which is stored. Raises: See `run_once`."""
        scorer, chain = self._scorer, self._settings.chain(score["chain_id"])
        turns = await scorer.store.stored_turns(score["score_id"])
        if turns and turns[-1].turn.kind == "memory":
            return turns[-1].turn.reply
        clock, nonce = AttemptClock(self._settings.attempt_timeout_s), score["nonce"]
        timeline = await scorer.source.fetch_timeline(score["session_id"], clock)
        about = mask_secrets(timeline.final_analysis or score["score_analysis"], self._masking)
        [vector] = await embed([about[:EMBEDDED_CHARACTERS]])
        asked = question(await nearest(self._tarsy, score, vector), nonce, self._masking)
        criteria = scorer.registry.of_chain(chain, score["criteria"])
        judges = {s.turn.provider for s in turns}
        provider = next((p for p in chain.providers if p in judges), chain.providers[0])
        factor = scorer.limits.token_factor
        ask = partial(scorer.clients[provider].ask, clock=clock, permits=permits)

        async def converse(context: FittedContext, _mask: Mask) -> str:
            if context.injections:
                raise Unscorable("the session holds text that addresses a model")
            # The opening is the judge's, byte for byte: the provider's cache may hold it.
            evaluation = Message("assistant", f"{score['score_analysis']}\n\n{score['total_score']}")
            messages = [*criteria.open_conversation(context), evaluation, Message("user", asked)]
            turn = await ask(Question("memory", messages, REPLY_FORMAT), token_factor=factor(provider))
            count_turn(scorer.metrics, turn, score["chain_id"])
            key = criteria.criteria_hash, context.context_hash, nonce, None
            turns.append(StoredTurn(len(turns) + 1, *key, turn))
            usage = sum_usage(s.turn for s in turns)
            await scorer.store.add_turn(score["score_id"], score["attempt"], turns[-1], usage)
            return turn.reply

        providers = self._settings.config.providers
        case = Case(timeline, nonce, chain, criteria, providers, lambda *_: ask, factor, self._masking)
        return await in_fitting_context(provider, case, converse)
