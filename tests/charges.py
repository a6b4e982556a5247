"""
Notes every amount that a day was ever charged, as it is committed: no look now and then can miss one.

A check on the table would not do: what it refuses is written again in smaller steps, which hides what was wrong.
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

# By scope and chain.
MOST_CHARGED = "SELECT scope, chain_id, max(charged_usd) AS usd FROM noted_charges GROUP BY scope, chain_id"


async def note_every_charge(url: str) -> None:
    """Begin to note in this database, which is of no use to other tests afterwards."""
    async with connected(url) as connection:
        await connection.execute(NOTE)
