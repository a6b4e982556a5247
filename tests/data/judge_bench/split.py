"""
Split labelled sessions by incident into two halves: one to develop criteria on, one to open once.

    python tests/data/judge_bench/split.py LABELS.csv [--check]

Reads the incident of each session from split.csv and its outcome from LABELS.csv, and writes the halves into
split.csv; `--check` writes nothing and exits with 1 if the halves differ.
"""

import argparse
import csv
import random
import sys
from collections import Counter
from itertools import combinations
from pathlib import Path

SEED = 20261123
SPLIT = Path(__file__).with_name("split.csv")
COLUMNS = ("session_id", "source", "incident", "half")


def halves(sizes: dict[str, Counter[str]], source: str) -> set[str]:
    """
    The incidents of one source that go to half A.

    Args:
        sizes: Number of sessions by outcome, by incident.
    """
    names = sorted(sizes)
    whole: Counter[str] = sum(sizes.values(), Counter())

    def imbalance(chosen: tuple[str, ...]) -> int:
        part: Counter[str] = sum((sizes[name] for name in chosen), Counter())
        return sum(abs(2 * part[outcome] - n) for outcome, n in whole.items())

    choices = [chosen for n in range(len(names) + 1) for chosen in combinations(names, n)]
    least = min(map(imbalance, choices))
    # The source is part of the seed: a source that is added later moves no session of another.
    return set(random.Random(f"{SEED}:{source}").choice([c for c in choices if imbalance(c) == least]))


def split(rows: list[dict[str, str]], outcomes: dict[str, str]) -> list[dict[str, str]]:
    """The rows with their halves, by source, incident and session."""
    sizes: dict[str, dict[str, Counter[str]]] = {}
    for row in rows:
        of_source = sizes.setdefault(row["source"], {})
        of_source.setdefault(row["incident"], Counter())[outcomes[row["session_id"]]] += 1
    in_a = {source: halves(incidents, source) for source, incidents in sizes.items()}
    done = [row | {"half": "A" if row["incident"] in in_a[row["source"]] else "B"} for row in rows]
    return sorted(done, key=lambda row: (row["source"], row["incident"], row["session_id"]))


def main() -> int:
    """Write or check split.csv and print the counts; return 1 if the check fails."""
    parser = argparse.ArgumentParser()
    parser.add_argument("labels", type=Path)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    with args.labels.open(newline="") as file:
        outcomes = {row["session_id"]: row["outcome"] for row in csv.DictReader(file)}
    with SPLIT.open(newline="") as file:
        before = list(csv.DictReader(file))
    rows = split(before, outcomes)
    if not args.check:
        with SPLIT.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    counts = Counter((r["source"], r["half"], outcomes[r["session_id"]]) for r in rows)
    for (source, half, outcome), n in sorted(counts.items()):
        sys.stdout.write(f"{source:20} {half} {outcome:10} {n:3}\n")
    return int(args.check and rows != before)


if __name__ == "__main__":
    raise SystemExit(main())
