"""
Rolling figures per chain, computed from the stored scores by one statement.

Windows move with the clock, in hops on whole UTC times: the hour by five minutes, the day by an hour. A
window ends at the next hop, so it includes time that is still empty. Totals and failure tags count as in
trends: a session once, by its latest score, and only under the criteria of the chain.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.scores.bands import DOUBTFUL_FLAGS
from tarsy_scoring.scores.latest import has_no_later, is_completed, is_of_kind

NO_CHAIN = ""  # stands for "no chain" here, and is the message key then
NOTHING_TO_JUDGE = "nothing_to_judge"  # an `error_kind` that is no failure

# Figures for every chain on which a production score ended within the day. $1 and $2 bound the day, which
# contains the hour ($3, $4); $5 to $7 are chains with their thresholds and criteria, $8 and $9 are those of all
# others. Each arm of `ended` has an index.
FIGURES = f"""
WITH ended AS (
  SELECT coalesce(s.chain_id, '') AS chain, s.completed_at, NULL AS failure, s.criteria,
         {is_of_kind("s", "without")} AND {has_no_later("s", of_its_kind=True)} AS is_latest,
         CASE WHEN NOT s.flags ?| ARRAY{sorted(DOUBTFUL_FLAGS)} THEN s.total_score END AS total_score,
         s.failure_tags, (s.usage ->> 'cost_usd')::numeric AS cost_usd
  FROM {{schema}}.session_scores s
  WHERE {is_completed("s")} AND s.completed_at >= $1 AND s.completed_at < $2
  UNION ALL
  SELECT coalesce(s.chain_id, ''), s.completed_at, s.error_kind, NULL, false, NULL, NULL, NULL
  FROM {{schema}}.session_scores s
  WHERE s.status IN ('failed', 'timed_out') AND s.purpose = 'production'
    AND s.completed_at >= $1 AND s.completed_at < $2
  UNION ALL
  SELECT coalesce(s.chain_id, ''), s.completed_at, s.error_kind, NULL, false, NULL, NULL, NULL
  FROM {{schema}}.session_scores s
  WHERE s.status = 'cancelled' AND s.purpose = 'production' AND s.completed_at >= $1 AND s.completed_at < $2
), counted AS (
  SELECT e.chain, w.name, e.failure, e.cost_usd, coalesce(t.threshold, $8) AS threshold,
         CASE WHEN c.counts THEN e.total_score END AS total_score,
         CASE WHEN c.counts THEN e.failure_tags END AS failure_tags
  FROM ended e
  JOIN (VALUES ('24h', $1::timestamptz, $2::timestamptz), ('1h', $3::timestamptz, $4::timestamptz))
    AS w(name, start_at, end_at) ON e.completed_at >= w.start_at AND e.completed_at < w.end_at
  LEFT JOIN unnest($5::text[], $6::float8[], $7::text[]) AS t(chain, threshold, criteria) ON t.chain = e.chain
  CROSS JOIN LATERAL (SELECT e.is_latest AND e.criteria = coalesce(t.criteria, $9::text) AS counts) c
), sums AS (
  SELECT chain, name, count(*) FILTER (WHERE failure IS NULL) AS scores, count(total_score) AS scored,
         sum(total_score)::float8 / nullif(count(total_score), 0) AS mean,
         count(*) FILTER (WHERE total_score < threshold) AS under_threshold, sum(cost_usd)::float8 AS cost_usd
  FROM counted GROUP BY chain, name
), failures AS (
  SELECT chain, name, jsonb_object_agg(failure, number) AS failures
  FROM (SELECT chain, name, failure, count(*) AS number
        FROM counted WHERE failure IS NOT NULL GROUP BY 1, 2, 3) f
  GROUP BY chain, name
), tags AS (
  SELECT chain, name, jsonb_object_agg(tag, number) AS failure_tags
  FROM (SELECT chain, name, tag, count(*) AS number
        FROM counted, jsonb_array_elements_text(failure_tags) AS element(tag) GROUP BY 1, 2, 3) t
  GROUP BY chain, name
)
SELECT * FROM sums LEFT JOIN failures USING (chain, name) LEFT JOIN tags USING (chain, name)
"""


def windows_at(now: datetime) -> dict[str, tuple[datetime, datetime]]:
    """Start and end of the last hour and of the last day, by their names in messages."""
    epoch = datetime(1970, 1, 1, tzinfo=UTC)

    def window(length: timedelta, hop: timedelta) -> tuple[datetime, datetime]:
        end = epoch + ((now - epoch) // hop + 1) * hop
        return end - length, end

    hour = timedelta(hours=1)
    return {"1h": window(hour, timedelta(minutes=5)), "24h": window(24 * hour, hour)}


def threshold_of(settings: Settings, chain: str) -> float | None:
    """The total below which scores of the chain count as `under_threshold`; None: it has no threshold."""
    own, default = settings.pass_thresholds(chain)
    return default if own is None else own


async def read_figures(
    database: Database, settings: Settings, now: datetime, chains: Iterable[str]
) -> dict[str, dict[str, Any]]:
    """
    Compute the current windows per chain, in the shape that messages carry.

    Args:
        chains: Chains to include although no score of theirs ended within the day; their windows count
            nothing.

    Raises:
        DatabaseAway: The database cannot be used right now.
    """
    windows = windows_at(now)
    thresholds = {chain: threshold_of(settings, chain) for chain in settings.config.chains}
    criteria = [chain.criteria for chain in settings.config.chains.values()]
    of_others = threshold_of(settings, NO_CHAIN), settings.config.defaults.criteria
    of_chains = list(thresholds), list(thresholds.values()), criteria, *of_others
    found = await database.rows(FIGURES, *windows["24h"], *windows["1h"], *of_chains)
    rows = {(row["chain"], row["name"]): dict(row) for row in found}
    return {
        chain: {
            name: _document(*window, threshold_of(settings, chain), rows.get((chain, name), {}))
            for name, window in windows.items()
        }
        for chain in sorted({*chains, *(chain for chain, _ in rows)})
    }


def _document(
    start: datetime, end: datetime, threshold: float | None, row: Mapping[str, Any]
) -> dict[str, Any]:
    """The figures of one window, as in `schemas/scoring-windows.v1.json`; no row: nothing ended in it."""
    scored, under = row.get("scored", 0), row.get("under_threshold", 0)
    failures: Mapping[str, int] = row.get("failures") or {}
    return {
        "start": f"{start:%Y-%m-%dT%H:%M:%SZ}",
        "end": f"{end:%Y-%m-%dT%H:%M:%SZ}",
        "scores": row.get("scores", 0),
        "scored": scored,
        "mean": row.get("mean"),
        "under_threshold": under,
        "threshold": int(threshold) if threshold and threshold.is_integer() else threshold,
        "share_under_threshold": None if threshold is None or not scored else under / scored,
        "failures": {kind: failures[kind] for kind in sorted(failures) if kind != NOTHING_TO_JUDGE},
        "nothing_to_judge": failures.get(NOTHING_TO_JUDGE, 0),
        "failure_tags": dict(sorted((row.get("failure_tags") or {}).items())),
        "cost_usd": row.get("cost_usd"),
    }


def is_empty(windows: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether no score ended in any of the windows."""
    return not any(w["scores"] or w["failures"] or w["nothing_to_judge"] for w in windows.values())
