"""
Rolling figures per chain, computed from the stored scores by one statement.

Windows move with the clock, in hops on whole UTC times: the hour by five minutes, the day by an hour. A
window
ends at the next hop, so it includes time that is still empty.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.postgres.database import Database

NO_CHAIN = ""  # stands for "no chain" here, and is the message key then
NOTHING_TO_JUDGE = "nothing_to_judge"  # an `error_kind` that is no failure
RED_BAND_ENDS = 50.0  # threshold for chains without one; the pages show totals below it in red

# The error kinds that occur, found by one index lookup each. The index on failures is (error_kind,
# completed_at), so it finds failures in a period only kind by kind. No list of kinds here: it may grow.
# Source: https://wiki.postgresql.org/wiki/Loose_indexscan
_KINDS = """
  (SELECT min(error_kind) AS kind FROM {schema}.session_scores WHERE status IN ('failed', 'timed_out'))
  UNION ALL
  SELECT (SELECT min(s.error_kind) FROM {schema}.session_scores s
          WHERE s.status IN ('failed', 'timed_out') AND s.error_kind > kinds.kind)
  FROM kinds WHERE kinds.kind IS NOT NULL
"""

# Production scores that ended from $1 on and before $2. Each arm has an index.
_ENDED = """
  SELECT coalesce(s.chain_id, '') AS chain, s.completed_at, NULL AS failure,
         CASE WHEN s.reference IS NULL THEN s.total_score END AS total_score,
         CASE WHEN s.reference IS NULL THEN s.failure_tags END AS failure_tags,
         (s.usage ->> 'cost_usd')::numeric AS cost_usd
  FROM {schema}.session_scores s
  WHERE s.status = 'completed' AND s.purpose = 'production' AND s.completed_at >= $1 AND s.completed_at < $2 <of_chains>
  UNION ALL
  SELECT coalesce(s.chain_id, ''), s.completed_at, s.error_kind, NULL, NULL, NULL
  FROM kinds JOIN {schema}.session_scores s ON s.error_kind = kinds.kind
  WHERE s.status IN ('failed', 'timed_out') AND s.purpose = 'production'
    AND s.completed_at >= $1 AND s.completed_at < $2 <of_chains>
  UNION ALL
  SELECT coalesce(s.chain_id, ''), s.completed_at, s.error_kind, NULL, NULL, NULL
  FROM {schema}.session_scores s
  WHERE s.status = 'cancelled' AND s.purpose = 'production' AND s.completed_at >= $1 AND s.completed_at < $2 <of_chains>
"""

# $1 and $2 bound the day, which contains the hour ($3, $4); $5 and $6 are chains with their thresholds, $7 is
# the threshold for all others.
_FIGURES = f"""
WITH RECURSIVE kinds AS ({_KINDS}), ended AS ({_ENDED}), counted AS (
  SELECT e.*, w.name, coalesce(t.threshold, $7) AS threshold
  FROM ended e
  JOIN (VALUES ('24h', $1::timestamptz, $2::timestamptz), ('1h', $3::timestamptz, $4::timestamptz))
    AS w(name, start_at, end_at) ON e.completed_at >= w.start_at AND e.completed_at < w.end_at
  LEFT JOIN unnest($5::text[], $6::float8[]) AS t(chain, threshold) USING (chain)
), sums AS (
  SELECT chain, name, count(*) FILTER (WHERE failure IS NULL) AS scores, count(total_score) AS scored,
         sum(total_score)::float8 / nullif(count(total_score), 0) AS mean,
         count(*) FILTER (WHERE total_score < threshold) AS under_threshold, sum(cost_usd)::float8 AS cost_usd
  FROM counted GROUP BY chain, name
), failures AS (
  SELECT chain, name, jsonb_object_agg(failure, number) AS failures
  FROM (SELECT chain, name, failure, count(*) AS number FROM counted WHERE failure IS NOT NULL GROUP BY 1, 2, 3) f
  GROUP BY chain, name
), tags AS (
  SELECT chain, name, jsonb_object_agg(tag, number) AS failure_tags
  FROM (SELECT chain, name, tag, count(*) AS number
        FROM counted, jsonb_array_elements_text(failure_tags) AS element(tag) GROUP BY 1, 2, 3) t
  GROUP BY chain, name
)
SELECT * FROM sums LEFT JOIN failures USING (chain, name) LEFT JOIN tags USING (chain, name)
"""

# Figures for every chain on which a score ended within the day.
FIGURES_OF_ALL = _FIGURES.replace("<of_chains>", "")

# The same for some chains, given in $8.
FIGURES_OF_CHAINS = _FIGURES.replace(
    "<of_chains>", "AND (s.chain_id = ANY($8::text[]) OR (s.chain_id IS NULL AND '' = ANY($8::text[])))"
)


@dataclass(frozen=True, slots=True)
class SignalWindow:
    """A window with the name that messages give it. `end` is the first moment after it."""

    name: str
    start: datetime
    end: datetime


def windows_at(now: datetime) -> tuple[SignalWindow, SignalWindow]:
    """The windows of the last hour and of the last day; the day contains the hour."""
    epoch = datetime(1970, 1, 1, tzinfo=UTC)

    def window(name: str, length: timedelta, hop: timedelta) -> SignalWindow:
        end = epoch + ((now - epoch) // hop + 1) * hop
        return SignalWindow(name, end - length, end)

    return window("1h", timedelta(hours=1), timedelta(minutes=5)), window(
        "24h", timedelta(hours=24), timedelta(hours=1)
    )


def threshold_of(settings: Settings, chain: str) -> float:
    """The total below which scores of the chain count as `under_threshold`."""
    own, default = settings.pass_thresholds(chain)
    return next((value for value in (own, default) if value is not None), RED_BAND_ENDS)


async def read_figures(
    database: Database,
    settings: Settings,
    now: datetime,
    chains: Collection[str],
    *,
    with_others: bool = False,
) -> dict[str, dict[str, Any]]:
    """
    Compute the current windows per chain, in the shape that messages carry.

    Args:
        with_others: Include all other chains on which a score ended within the day.

    Returns:
        Windows by chain. A chain without a score within the day has windows that count nothing.

    Raises:
        DatabaseAway: The database cannot be used right now.
    """
    hour, day = windows_at(now)
    thresholds = {chain: threshold_of(settings, chain) for chain in settings.config.chains}
    arguments: list[Any] = [day.start, day.end, hour.start, hour.end]
    arguments += [list(thresholds), list(thresholds.values()), threshold_of(settings, NO_CHAIN)]
    arguments += [] if with_others else [list(chains)]
    sql = database.sql(FIGURES_OF_ALL if with_others else FIGURES_OF_CHAINS)
    rows = {(r["chain"], r["name"]): dict(r) for r in await database.once(lambda c: c.fetch(sql, *arguments))}
    return {
        chain: {
            w.name: _document(w, threshold_of(settings, chain), rows.get((chain, w.name), {}))
            for w in (hour, day)
        }
        for chain in sorted({*chains, *(chain for chain, _ in rows)})
    }


def _document(window: SignalWindow, threshold: float, row: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of one window, as in `schemas/scoring-windows.v1.json`; no row: nothing ended in it."""
    scored, under = row.get("scored", 0), row.get("under_threshold", 0)
    failures: Mapping[str, int] = row.get("failures") or {}
    return {
        "start": f"{window.start:%Y-%m-%dT%H:%M:%SZ}",
        "end": f"{window.end:%Y-%m-%dT%H:%M:%SZ}",
        "scores": row.get("scores", 0),
        "scored": scored,
        "mean": row.get("mean"),
        "under_threshold": under,
        "threshold": int(threshold) if threshold.is_integer() else threshold,
        "share_under_threshold": under / scored if scored else None,
        "failures": {kind: failures[kind] for kind in sorted(failures) if kind != NOTHING_TO_JUDGE},
        "nothing_to_judge": failures.get(NOTHING_TO_JUDGE, 0),
        "failure_tags": dict(sorted((row.get("failure_tags") or {}).items())),
        "cost_usd": row.get("cost_usd"),
    }


def is_empty(windows: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether no score ended in any of the windows."""
    return not any(w["scores"] or w["failures"] or w["nothing_to_judge"] for w in windows.values())
