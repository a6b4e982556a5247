"""Criteria and chains that living workers know. A pending score under other names waits for such a worker."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg

from tarsy_scoring.postgres.database import Database

KNOWN = "SELECT kind, name FROM {schema}.known_names WHERE seen_at > now() - make_interval(secs => $1)"
LIVING_S = 180.0  # the longest `Policy.living_s`


@dataclass(frozen=True, slots=True)
class KnownNames:
    """Criteria and chains that living workers know; without any if no worker lives."""

    criteria: frozenset[str]
    chains: frozenset[str]

    def lack(self, score: Mapping[str, Any]) -> bool:
        """Whether no living worker knows the criteria, or the named chain, of this score."""
        if not (self.criteria or self.chains):
            return False
        criteria, chain_id = score["criteria"], score["chain_id"]
        has_unknown_criteria = criteria is not None and criteria not in self.criteria
        return has_unknown_criteria or bool(
            score["chain_is_named"] and chain_id and chain_id not in self.chains
        )


async def known_to_workers(database: Database) -> KnownNames:
    """The names that living workers know. Raises: DatabaseAway."""
    criteria, chains = by_kind(await database.single(KNOWN, LIVING_S))
    return KnownNames(frozenset(criteria), frozenset(chains))


def by_kind(rows: Sequence[asyncpg.Record]) -> tuple[list[str], list[str]]:
    """The criteria and the chains in rows of `KNOWN`."""
    criteria, chains = ([r["name"] for r in rows if r["kind"] == kind] for kind in ("criteria", "chain"))
    return criteria, chains
