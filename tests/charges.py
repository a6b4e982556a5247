"""
Records every amount charged to a budget day, by a trigger, so that no intermediate amount is missed.

A check constraint would not do: the service writes a refused charge again in smaller steps, which hides
the fault.
"""

from builders import connected

NOTE = """
CREATE TABLE noted_charges (scope text, chain_id text, charged_usd numeric);
CREATE FUNCTION note_charge() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO noted_charges VALUES (NEW.scope, NEW.chain_id, NEW.charged_usd);
  RETURN NULL;
END $$;
CREATE TRIGGER note AFTER INSERT OR UPDATE ON budget_days FOR EACH ROW EXECUTE FUNCTION note_charge();
"""

# The highest amount ever charged, by scope and chain.
MOST_CHARGED = "SELECT scope, chain_id, max(charged_usd) AS usd FROM noted_charges GROUP BY scope, chain_id"


async def note_every_charge(url: str) -> None:
    """Install the trigger; no other test may use this database afterwards."""
    async with connected(url) as connection:
        await connection.execute(NOTE)
