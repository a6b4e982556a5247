"""
Finds the daily budgets that are spent: too little is left for a call, so scores wait for the next UTC day.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.limits.budgets import DayBudget, exact_usd
from tarsy_scoring.postgres.database import Database

LEAST_USD = Decimal("0.000001")  # where no price is known, or a call costs nothing

# Yesterday's, too: a budget may be spent just before midnight.
RECENT = """
SELECT d.*, d.day = today AS is_today, extract(epoch FROM clock_timestamp() - d.reserved_at)::float8 AS reserved_for_s,
       0::float8 AS day_left_s
FROM {schema}.budget_days d, (SELECT (now() AT TIME ZONE 'UTC')::date AS today) t
WHERE d.day >= today - 1
"""


@dataclass(frozen=True, slots=True)
class SpentBudget:
    """
    A daily budget that is spent.

    Args:
        chain_id: '' for scores without a chain; None for the budget of all chains.
    """

    day: date
    chain_id: str | None
    limit_usd: Decimal


async def spent_budgets(
    database: Database, settings: Settings, least_usd: Mapping[str, float]
) -> list[SpentBudget]:
    """
    Budgets of today and yesterday that a call was refused for until the next day, and those of today that
    have less left than the cheapest call reserves, even if every running call cost nothing.

    Args:
        least_usd: What the cheapest call reserves, by provider.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    found = []
    for row in await database.fetch(RECENT):
        budget = DayBudget.of(dict(row), settings)
        is_of_all = row["scope"] == "all"
        providers = settings.config.providers if is_of_all else settings.chain(row["chain_id"]).providers
        least = max(LEAST_USD, exact_usd(min((least_usd.get(p, 0.0) for p in providers), default=0.0)))
        is_spent = budget.was_spent or (row["is_today"] and not budget.may_have_later(least))
        if budget.limit is not None and is_spent:
            found.append(SpentBudget(row["day"], None if is_of_all else row["chain_id"], budget.limit))
    return found
