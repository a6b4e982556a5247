"""
Records every amount charged to a budget day, by a trigger, so that no intermediate amount is missed.

A check constraint would not do: the service writes a refused charge again in smaller steps, which hides
the fault.
"""

from pathlib import Path

from builders import connected

NOTE = Path(__file__).with_suffix(".sql").read_text("utf-8")

# The highest amount ever charged, by scope and chain.
MOST_CHARGED = "SELECT scope, chain_id, max(charged_usd) AS usd FROM noted_charges GROUP BY scope, chain_id"


async def note_every_charge(url: str) -> None:
    """Install the trigger; no other test may use this database afterwards."""
    async with connected(url) as connection:
        await connection.execute(NOTE)
