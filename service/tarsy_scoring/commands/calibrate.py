"""`calibrate`: measures how well the judge agrees with people's labels."""

import sys
from dataclasses import asdict
from pathlib import Path

import click

from tarsy_scoring.commands.shared import (
    FAILED,
    json_option,
    print_json,
    print_text,
    require_criteria,
    run_on_parts,
)
from tarsy_scoring.labels.calibration import Label, TrustCard
from tarsy_scoring.labels.label_file import read_labels
from tarsy_scoring.labels.labels import compare, counted_labels, known_criteria
from tarsy_scoring.wiring import Parts


@click.command()
@click.argument("labels_file", metavar="[LABELS.csv]", required=False, type=click.Path(path_type=Path))
@click.option("--criteria", metavar="NAME", help="Only scores under these criteria.")
@json_option
def calibrate(labels_file: Path | None, criteria: str | None, as_json: bool) -> None:
    """
    Measure how well the judge agrees with labels.

    Each criteria and judge fingerprint is measured by itself. Without a file the stored labels count: those
    given here, and reviews in TARSy. LABELS.csv has a header and a line per label:
    `session_id`, `outcome` (correct, partial, wrong; accurate, partially_accurate, inaccurate; a band's id;
    unknown), or `number` (0-100), or both; also `selection` (`random`, or `picked` for sessions
    chosen for review, which are shown by themselves as well). Exit status 1: no label matches a
    score.

    An outcome states whether the answer was right. Criteria that judge the conduct of the investigation
    measure something else, so full agreement is not to be expected.
    """

    async def work(parts: Parts) -> tuple[list[Label], list[TrustCard]]:
        names, bands = await known_criteria(parts.database)
        if criteria is not None:
            require_criteria(parts.registry, criteria, also=names)
        # Bands first, because labels may name their ids.
        band_ids = {name for c in parts.registry for name in c.bands} | {
            b.id for each in bands.values() for b in each
        }
        if labels_file is None:
            labels, _ = await counted_labels(parts.database)
        else:
            labels = read_labels(labels_file, band_ids)
        return labels, await compare(parts.database, labels, bands, criteria)

    labels, found = run_on_parts(work)
    document = {
        "labels": {"read": len(labels), "undecided": sum(not label.is_decided for label in labels)},
        "calibrations": [asdict(c) for c in found],
    }
    print_json(document) if as_json else print_text("calibration.txt", document)
    sys.exit(0 if any(c.matched for c in found) else FAILED)
