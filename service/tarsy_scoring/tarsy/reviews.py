"""
Makes labels of the ratings that reviewers give in TARSy.

Laws. A session has at most one such label: its rating as TARSy has it now. TARSy's log of review actions only
says which sessions to read again, so an entry that is read twice changes nothing. A pass reads the log from
`OVERLAP` before the start of the last complete pass, by the clock of TARSy's database: it finds each entry
that is committed within that time after the time that it records. NOTIFY makes a pass begin at once, and is
needed for nothing else.

A rating counts if an entry of the log completes the review with a rating: TARSy's migration rated older
sessions without one. Sessions that this service does not know are read when they become known.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid5

import asyncpg
import structlog

from tarsy_scoring.config.secrets import secret_source
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.events import MAX_REFERENCE_CHARACTERS, GivenReference
from tarsy_scoring.labels.labels import Review, keep_reviews
from tarsy_scoring.postgres.database import CONTACT_S, Database, DatabaseAway
from tarsy_scoring.postgres.listen import listen
from tarsy_scoring.postgres.moments import moment
from tarsy_scoring.queue.admission import Priority, Request
from tarsy_scoring.queue.inbox import KNOWN_REQUESTS, Inbox
from tarsy_scoring.references.model import REVIEWED_BY, reference_of
from tarsy_scoring.tarsy.database import TarsyAway, TarsyPool, TarsyUnfit
from tarsy_scoring.tarsy.schema import REVIEW_TABLES, nearest_time
from tarsy_scoring.tarsy.sessions import read_server
from tarsy_scoring.timeline.clean.masking import mask_secrets, masking_of

log = structlog.get_logger()

CATCH_UP_S, RETRY_S = 60.0, 2.0
PAUSE_S = 0.5  # between passes, however often TARSy notifies
OVERLAP = timedelta(hours=1)
PAGE = 500
MAX_NAME = 255
OUTCOMES = {"accurate": "correct", "partially_accurate": "partial", "inaccurate": "wrong"}

# No index of TARSy begins with the time, so PostgreSQL reads the whole index on session and time.
REVIEWED_SINCE = "SELECT DISTINCT session_id FROM session_review_activities WHERE created_at >= $1"

RATINGS = f"""
SELECT s.session_id, s.quality_rating AS rating, left(a.actor, {MAX_NAME}) AS actor,
  {nearest_time("a.created_at")} AS at, left(s.investigation_feedback, {MAX_REFERENCE_CHARACTERS}) AS feedback
FROM alert_sessions s CROSS JOIN LATERAL (
  SELECT actor, created_at FROM session_review_activities a
  WHERE a.session_id = s.session_id AND quality_rating IS NOT NULL ORDER BY created_at DESC LIMIT 1) a
WHERE s.session_id = ANY($1::text[]) AND s.review_status = 'reviewed' AND EXISTS (
  SELECT FROM session_review_activities c
  WHERE c.session_id = s.session_id AND c.action = 'complete' AND c.quality_rating IS NOT NULL)
"""

UNTIL = "SELECT reviews_until FROM {schema}.bridge_bookmark"
# Only where the pass began: another process may have moved it back.
MOVE = """
UPDATE {schema}.bridge_bookmark SET reviews_until = $2 WHERE reviews_until IS NOT DISTINCT FROM $1
"""
MOVE_BACK = "UPDATE {schema}.bridge_bookmark SET reviews_until = least(reviews_until, $1) RETURNING since"

KNOWN = """
SELECT session_id FROM {schema}.sessions WHERE session_id = ANY($1::text[])
UNION SELECT session_id FROM {schema}.sessions WHERE first_seen_at >= $2 ORDER BY 1
"""

# Those of the sessions with a score, or one under way, and their chains.
SCORED = """
SELECT session_id, chain_id FROM {schema}.sessions m WHERE session_id = ANY($1::text[]) AND EXISTS (
  SELECT FROM {schema}.session_scores s WHERE s.session_id = m.session_id AND s.purpose = 'production'
    AND s.status IN ('pending', 'in_progress', 'completed'))
"""


class Reviews:
    """
    Reads reviews beside the bridge, in the process that leads.

    Args:
        tarsy: Owned by the caller; see `open_reviews`.
        inbox: Takes requests to judge again against what reviewers wrote; None: no chain wants that.
        since: Read reviews from then on again, whatever was read before.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        tarsy: TarsyPool,
        inbox: Inbox | None = None,
        since: datetime | None = None,
    ) -> None:
        self._settings = settings
        self._database = database
        self._tarsy = tarsy
        self._inbox = inbox
        self._since = since
        self._woken = asyncio.Event()
        self._listening: asyncpg.Connection | None = None
        self._is_waiting = False  # a failure was logged, and no pass has succeeded since

    async def run(self) -> None:
        """Make passes until cancelled: each minute, at a notification, and on each new connection."""
        url = secret_source(self._settings, "timeline_database_url")
        async with asyncio.TaskGroup() as group:
            hear = {"sessions": self._wake}
            group.create_task(listen(url, hear, contact_s=CONTACT_S, probe=self._probe))
            while True:
                self._woken.clear()
                wait_s = CATCH_UP_S if await self._try_to_catch_up() else RETRY_S
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._woken.wait(), wait_s)
                await asyncio.sleep(PAUSE_S)

    def _wake(self, payload: str) -> None:
        if '"review.status"' in payload:
            self._woken.set()

    async def _probe(self, connection: asyncpg.Connection) -> bool:
        await connection.execute("SELECT 1")
        if connection is not self._listening:
            self._listening = connection
            self._woken.set()
        return True

    async def _try_to_catch_up(self) -> bool:
        """Make a pass; returns whether the next may wait. Raises nothing that waiting mends."""
        try:
            changed = await self.catch_up()
        except DatabaseAway as error:
            self._database.note_away(error)
            return False
        except (TarsyAway, TarsyUnfit) as error:
            if not self._is_waiting:
                self._is_waiting = True
                log.warning("reviews.waiting", reason=str(error), effect="reviews do not become labels")
            return isinstance(error, TarsyUnfit)
        self._is_waiting = False
        if changed:
            log.info("reviews.labelled", labels=changed)
        return changed is not None

    async def move_back(self) -> None:
        """Let the next pass begin at `since`, if it is given. Raises: DatabaseAway."""
        if self._since is not None and await self._database.fetch(MOVE_BACK, self._since):
            self._since = None

    async def catch_up(self) -> int | None:
        """
        Read the sessions that were reviewed, or became known here, since the last pass.

        Returns:
            How many labels were added, changed or removed; None: the bridge has no bookmark yet.

        Raises:
            TarsyAway, TarsyUnfit, DatabaseAway: The next pass begins where this one did.
        """
        await self.move_back()
        rows = await self._database.fetch(UNTIL)
        if not rows:
            return None
        began = rows[0]["reviews_until"]
        async with self._tarsy.transaction() as (connection, _):
            now = (await read_server(connection))["now"]
            since = min(began or now, now) - OVERLAP
            reviewed = [r["session_id"] for r in await connection.fetch(REVIEWED_SINCE, since)]
        known = [r["session_id"] for r in await self._database.fetch(KNOWN, reviewed, since)]
        changed = 0
        for start in range(0, len(known), PAGE):
            changed += await self._read(known[start : start + PAGE])
        await self._database.fetch(MOVE, began, now)
        return changed

    async def _read(self, session_ids: Sequence[str]) -> int:
        async with self._tarsy.transaction() as (connection, _):
            rows = await connection.fetch(RATINGS, session_ids)
        rated = [row for row in rows if row["rating"] in OUTCOMES]
        reviews = await asyncio.to_thread(lambda: [self._review_of(dict(row)) for row in rated])
        if self._inbox is not None:
            await self._judge_again(self._inbox, reviews)
        return await keep_reviews(self._database, session_ids, reviews)

    def _review_of(self, row: Mapping[str, Any]) -> Review:
        """Masks what the reviewer wrote, so call it in a thread."""
        masking = masking_of(self._settings.config.masking_patterns)
        reason = mask_secrets((row["feedback"] or "").strip(), masking)[:MAX_REFERENCE_CHARACTERS]
        return Review(row["session_id"], row["actor"], row["at"], OUTCOMES[row["rating"]], reason or None)

    async def _judge_again(self, inbox: Inbox, reviews: Sequence[Review]) -> None:
        """Request a score against each text that a chain wants and that was not judged against before."""
        ids = [review.session_id for review in reviews if review.reason]
        chains = {r["session_id"]: r["chain_id"] for r in await self._database.fetch(SCORED, ids)}
        wanted = [review for review in reviews if self._is_wanted(review, chains)]
        requests = await asyncio.to_thread(lambda: {r.request_id: r for r in map(self._request_of, wanted)})
        done = {r["request_id"] for r in await self._database.fetch(KNOWN_REQUESTS, list(requests))}
        if new := [request for request_id, request in requests.items() if request_id not in done]:
            await inbox.accept(new)

    def _is_wanted(self, review: Review, chains: Mapping[str, str | None]) -> bool:
        if review.session_id not in chains:
            return False
        wanted = self._settings.chain(chains[review.session_id]).references.get("from_reviews", "none")
        return wanted == "all" or (wanted == "inaccurate" and review.outcome == "wrong")

    def _request_of(self, review: Review) -> Request:
        given = GivenReference(text=review.reason or "", provided_at=moment(review.at))
        sent_by, patterns = f"{REVIEWED_BY}{review.by}", self._settings.config.masking_patterns
        reference = reference_of(given, review.session_id, patterns, by=review.by, sent_by=sent_by)
        return Request(
            request_id=uuid5(reference.reference_id, "review"),  # once for each text
            session_id=review.session_id,
            source="review",
            requested_by=review.by,
            force=True,
            reference=reference,
            priority=Priority.BULK,
        )


def open_reviews(settings: Settings) -> TarsyPool:
    """TARSy's database for `Reviews`; connects to nothing yet. Close it."""
    url = secret_source(settings, "timeline_database_url")
    return TarsyPool(url, "SCORING_TIMELINE_DATABASE_URL", REVIEW_TABLES, is_read_only=True)
