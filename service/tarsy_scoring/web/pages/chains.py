"""
The names of chains that forms suggest: those of the configuration, and those of stored sessions.
"""

from tarsy_scoring.web.context import Site

MOST_SUGGESTED = 100  # of stored ones; nobody looks through more, and events may name as many as they like

# Each name out of a step of its own through the index, however many sessions have it.
STORED_CHAINS = """
WITH RECURSIVE known AS (
  SELECT min(chain_id) AS chain_id FROM {schema}.sessions
  UNION ALL
  SELECT (SELECT min(m.chain_id) FROM {schema}.sessions m WHERE m.chain_id > k.chain_id)
  FROM known k WHERE k.chain_id IS NOT NULL)
SELECT chain_id FROM known WHERE chain_id IS NOT NULL LIMIT $1
"""


async def chain_names(site: Site) -> list[str]:
    """
    Names to suggest, in order; any other may be asked for too.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    database = site.reader.database
    rows = await database.once(lambda c: c.fetch(database.sql(STORED_CHAINS), MOST_SUGGESTED))
    return sorted({*site.settings.config.chains, *(row["chain_id"] for row in rows)})
