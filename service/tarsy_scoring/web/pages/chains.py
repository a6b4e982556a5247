"""
The names of chains that forms suggest: those of the configuration, and those of stored sessions.
"""

from tarsy_scoring.records.session_list import chains_of_sessions
from tarsy_scoring.web.context import AppContext

MOST_SUGGESTED = 100  # of stored ones; nobody looks through more, and events may name as many as they like


async def chain_names(context: AppContext) -> list[str]:
    """
    Names to suggest, in order; any other may be asked for too.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    stored = await chains_of_sessions(context.reader.database, MOST_SUGGESTED)
    return sorted({*context.settings.config.chains, *stored})
