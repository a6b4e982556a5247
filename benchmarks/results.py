"""
Write the results of all releases into `docs/benchmarks.md`: `python -m benchmarks.results`.

A release's results are the file `benchmarks/results/VERSION.json` that `benchmarks.run --json` wrote. With
`--check` nothing is written, and the exit status is 1 if the page differs.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import NOISY

ROOT = Path(__file__).resolve().parents[1]
PAGE, RESULTS = ROOT / "docs/benchmarks.md", ROOT / "benchmarks/results"
BEGIN, END = "<!-- results: generated from benchmarks/results -->", "<!-- /results -->"

# Heading, value in a file of results, factor, digits.
_COLUMNS: Sequence[tuple[str, str, float, int]] = (
    ("scores/s", "rate", 1, 1),
    ("of ideal", "share_of_ideal", 1, 2),
    ("of bare", "ratio_to_bare", 1, 2),
    ("CPU ms", "cpu_s", 1000, 1),
    ("pg", "database_cpu_s", 1000, 1),
    ("MB", "peak_rss", 2**-20, 0),
    ("tx", "transactions", 1, 1),
    ("updates", "updates", 1, 1),
    ("others", "bystanders_share", 100, 0),
)


def page(old: str, files: Mapping[str, str]) -> str:
    """
    The page with its results replaced.

    Args:
        files: Content of the files of results by name; the versions are in the names.

    Raises:
        ValueError: The page has lost its marks.
    """
    head, begin, rest = old.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not end:
        raise ValueError(f"{PAGE.name} has lost the marks around its results")
    newest_first = sorted(files, key=lambda name: [int(part) for part in Path(name).stem.split(".")], reverse=True)
    parts = [_release(Path(name).stem, json.loads(files[name])) for name in newest_first]
    return f"{head}{begin}\n\n{''.join(parts)}{end}{tail}"


def _release(version: str, measured: Mapping[str, Any]) -> str:
    at = measured["machine"]
    gigabytes = at["memory_bytes"] / 2**30
    where = f"{at['cores']} cores ({at['processor']}), {gigabytes:.0f} GB, {at['system']}"
    programs = f"Python {at['python']}, PostgreSQL {measured['postgresql']}, {measured['broker']}"
    headings = ["scenario", "runs", *(heading for heading, *_ in _COLUMNS)]
    shares = [row["values"]["bystanders_share"]["median"] for row in measured["results"]]
    doubt = f" **Noisy**: other work used up to {max(shares):.0%} of the machine." if max(shares) > NOISY else ""
    lines = [
        f"**{version}**, {measured['date']}: {where}, {programs}.{doubt}",
        "",
        f"| {' | '.join(headings)} |",
        f"|{'---|' * len(headings)}",
    ]
    for row in measured["results"]:
        cells = [f"`{row['name']}`", str(row["runs"])]
        cells += [_cell(row["values"].get(name), factor, digits) for _, name, factor, digits in _COLUMNS]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", ""])


def _cell(value: Mapping[str, float] | None, factor: float, digits: int) -> str:
    """Median, and the range if runs differ; empty without a value."""
    if value is None:
        return ""
    median, least, most = (f"{factor * value[name]:.{digits}f}" for name in ("median", "least", "most"))
    return median if least == most else f"{median} ({least}-{most})"


def main() -> int:
    """Exit status 0: the page holds the results; 1: with `--check`, it does not; 2: wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.results", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 if the page differs")
    asked = parser.parse_args()
    old = PAGE.read_text("utf-8")
    new = page(old, {path.name: path.read_text("utf-8") for path in RESULTS.glob("*.json")})
    if asked.check:
        if new != old:
            sys.stderr.write("docs/benchmarks.md differs from benchmarks/results; run: python -m benchmarks.results\n")
        return int(new != old)
    PAGE.write_text(new, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
