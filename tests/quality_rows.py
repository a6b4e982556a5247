"""A year of scores for tests of query plans."""

from pathlib import Path

from benchmarks.stored import DECISIONS

# A year of scores; one session in four was scored twice. Three judges follow each other, under two criteria.
# A score names up to three missing tools, in three spellings; a few tools are named most. Agents had one of
# 40 sets of tools, which contain more of the missing tools from month to month. All picks of the review list
# are labelled, ten a day of each judge. The queue of the day before has not been drawn yet.
FILL = Path(__file__).with_suffix(".sql").read_text("utf-8")


def filling(scores: int, chains: int) -> str:
    """Statements that put a year of scores into a migrated database."""
    return (FILL + DECISIONS).format(scores=scores, sessions=max(1, scores * 4 // 5), chains=chains)
