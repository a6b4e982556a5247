"""`calibrate LABELS.csv`: measures how well the judge agrees with people's labels."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tarsy_scoring.commands.shared import (
    FAILED,
    json_option,
    print_json,
    require_criteria,
    run_on_parts,
)
from tarsy_scoring.records.judgements import known_criteria, scores_by_judge
from tarsy_scoring.statistics import calibration
from tarsy_scoring.statistics.agreement import Band, Estimate
from tarsy_scoring.statistics.calibration import Calibration, Label, LabelledScore, read_labels
from tarsy_scoring.wiring import Parts

BandsByHash = dict[str, tuple[Band, ...]]


@click.command()
@click.argument("labels_file", metavar="LABELS.csv", type=click.Path(path_type=Path))
@click.option("--criteria", metavar="NAME", help="Only scores under these criteria.")
@json_option
def calibrate(labels_file: Path, criteria: str | None, as_json: bool) -> None:
    """
    Measure how well the judge agrees with labels, for each criteria and judge fingerprint.

    LABELS.csv has a header and a line per label: `session_id`, `outcome` (correct, partial, wrong; accurate,
    partially_accurate, inaccurate; a band's id; unknown), or `number` (0-100), or both; also `labeller`
    and `selection` (`random`, or `picked` for sessions chosen for review, which are left out because
    they are not representative). Exit status 1: no label matches a score.

    An outcome states whether the answer was right. Criteria that judge the conduct of the investigation
    measure something else, so full agreement is not to be expected.
    """

    async def work(parts: Parts) -> tuple[list[Label], list[LabelledScore], BandsByHash]:
        names, bands = await known_criteria(parts.database)
        if criteria is not None:
            require_criteria(parts.registry, criteria, also=names)
        # Bands first, because labels may name their ids.
        band_ids = {name for c in parts.registry for name in c.bands} | {b.id for each in bands.values() for b in each}
        labels = read_labels(labels_file, band_ids=band_ids)
        sessions = sorted({label.session_id for label in labels})
        return labels, await scores_by_judge(parts.database, sessions, criteria), bands

    labels, scores, bands = run_on_parts(work)
    found = calibration.calibrate(labels, scores, bands)
    if as_json:
        print_json(_document(labels, found))
    else:
        _show(labels, found)
    sys.exit(0 if any(c.matched for c in found) else FAILED)


def _document(labels: Sequence[Label], found: Sequence[Calibration]) -> dict[str, Any]:
    return {
        "labels": {
            "read": len(labels),
            "undecided": sum(not label.is_decided for label in labels),
            "picked": sum(label.is_decided and not label.is_random for label in labels),
        },
        "calibrations": [asdict(c) for c in found],
    }


def _show(labels: Sequence[Label], found: Sequence[Calibration]) -> None:
    console = Console()
    undecided = sum(not label.is_decided for label in labels)
    console.print(f"{len(labels)} labels, {undecided} of them undecided", markup=False)
    if not found:
        console.print("no labelled session has a completed score", markup=False)
    for c in found:
        console.print()
        judge = f"  {c.criteria_hash[:12]}  judge {c.judge_fingerprint[:12]}"
        console.print(Text.assemble((c.criteria, "bold"), judge))
        console.print(c.meaning, markup=False, highlight=False)
        if c.matched:
            console.print(_numbers(c))
            console.print(_confusion(c))
        for what, count in _left_out(c):
            console.print(f"{what}: {count}", markup=False)


def _numbers(c: Calibration) -> Table:
    table = Table("", "value", "95 % interval", "how")
    table.add_row("sessions", str(c.matched), "", "labelled, randomly drawn and scored")
    over = "the labels' numbers" if c.spearman_over == "numbers" else "the order of bands"
    table.add_row("Spearman", *_estimate(c.spearman), Text(f"totals against {over}; {_how(c.spearman)}"))
    table.add_row("weighted kappa", *_estimate(c.kappa), Text(_how(c.kappa)))
    more = "unknown" if c.still_needed is None else str(c.still_needed)
    table.add_row("labels still needed", more, "", Text(c.needed.reason or f"{c.needed.total} in all"))
    return table


def _estimate(estimate: Estimate) -> tuple[str, str]:
    value = "unknown" if estimate.value is None else f"{estimate.value:.2f}"
    has_interval = estimate.low is not None and estimate.high is not None
    return value, f"{estimate.low:.2f} to {estimate.high:.2f}" if has_interval else "unknown"


def _how(estimate: Estimate) -> str:
    return estimate.reason or estimate.method


def _confusion(c: Calibration) -> Table:
    table = Table("label \\ judge", title_justify="left")
    for band in c.bands:
        table.add_column(Text(band.id), justify="right")
    for band, counts in zip(c.bands, c.confusion.counts, strict=True):
        table.add_row(Text(band.id), *map(str, counts))
    return table


def _left_out(c: Calibration) -> list[tuple[str, int]]:
    counts = [
        ("labelled, without a score of this judge", len(c.unmatched)),
        ("left out: the label or the total is outside every band", len(c.unplaced)),
        ("left out, picked for review", c.picked),
        ("labelled differently by different labellers; the lower median counts", c.disputed),
    ]
    return [(what, count) for what, count in counts if count]
