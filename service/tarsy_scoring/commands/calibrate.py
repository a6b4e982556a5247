"""`calibrate LABELS.csv`: measures how well the judge agrees with people's labels."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from tarsy_scoring.commands.completion import criteria_names
from tarsy_scoring.commands.shared import (
    FAILED,
    json_option,
    plain,
    print_json,
    print_text,
    require_criteria,
    run_on_parts,
)
from tarsy_scoring.labels import calibration
from tarsy_scoring.labels.calibration import COLUMNS, Calibration, Label, LabelledScore, read_labels
from tarsy_scoring.labels.judgements import known_criteria, scores_by_judge
from tarsy_scoring.references.known_causes import read_pairs
from tarsy_scoring.scores.bands import Band

if TYPE_CHECKING:
    from tarsy_scoring.wiring import Parts

BandsByHash = dict[str, tuple[Band, ...]]


@click.command()
@click.argument("labels_file", metavar="[LABELS.csv]", required=False, type=click.Path(path_type=Path))
@click.option(
    "--references", is_flag=True, help="Compare with the judgements against references instead of labels."
)
@click.option(
    "--criteria", shell_complete=criteria_names, metavar="NAME", help="Only scores under these criteria."
)
@json_option
def calibrate(labels_file: Path | None, references: bool, criteria: str | None, as_json: bool) -> None:
    """
    Measure how well the judge agrees with labels.

    Each criteria and judge fingerprint is measured by itself. LABELS.csv has a header and a line per label:
    `session_id`, `outcome` (correct, partial, wrong; accurate, partially_accurate, inaccurate; a band's id;
    unknown), or `number` (0-100), or both; also `labeller` and `selection` (`random`, or `picked` for
    sessions chosen for review, which are left out because they are not representative). Exit status 1: no
    label matches a score.

    An outcome states whether the answer was right. Criteria that judge the conduct of the investigation
    measure something else, so full agreement is not to be expected.

    With --references the place of a label is taken by the judgement of the same session against a reference
    under the same criteria. That is no label of a person, and sessions whose cause became known are no random
    sample. Judgements against references are never calibrated themselves.
    """
    if references == (labels_file is not None):
        raise click.UsageError("name a file with labels, or use --references")

    unread: tuple[str, ...] = ()

    async def work(parts: "Parts") -> tuple[list[Label], list[LabelledScore], BandsByHash]:
        nonlocal unread
        names, bands = await known_criteria(parts.database)
        if criteria is not None:
            require_criteria(parts.registry, criteria, also=names)
        if labels_file is None:
            pairs = await read_pairs(parts.database, criteria)
            return [p.label for p in pairs], [p.score for p in pairs], bands
        # Bands first, because labels may name their ids.
        band_ids = {name for c in parts.registry for name in c.bands} | {
            b.id for each in bands.values() for b in each
        }
        file = read_labels(labels_file, band_ids=band_ids)
        labels, unread = file.labels, file.unread_columns
        sessions = sorted({label.session_id for label in labels})
        return labels, await scores_by_judge(parts.database, sessions, criteria), bands

    with Console(stderr=True).status("reading ..."):  # prints nothing where stderr is no terminal
        labels, scores, bands = run_on_parts(work)
    if unread:
        known = ", ".join(name for names in COLUMNS.values() for name in names)
        click.echo(f"columns that are not read: {plain(', '.join(unread))} (known: {known})", err=True)
    found = (
        _by_criteria(labels, scores, bands) if references else calibration.calibrate(labels, scores, bands)
    )
    document = {
        "labels": {
            "read": len(labels),
            "undecided": sum(not label.is_decided for label in labels),
            "picked": sum(label.is_decided and not label.is_random for label in labels),
            "unread_columns": unread,
        },
        "calibrations": [asdict(c) for c in found],
    }
    print_json(document) if as_json else print_text("calibration.txt", document)
    sys.exit(0 if any(c.matched for c in found) else FAILED)


def _by_criteria(labels: list[Label], scores: list[LabelledScore], bands: BandsByHash) -> list[Calibration]:
    """Calibrate pairs; each judgement with a reference stands beside judges under the same criteria alone."""
    found: list[Calibration] = []
    for judge in dict.fromkeys((s.criteria_hash, s.judge_fingerprint) for s in scores):
        mine = [i for i, s in enumerate(scores) if (s.criteria_hash, s.judge_fingerprint) == judge]
        found += calibration.calibrate([labels[i] for i in mine], [scores[i] for i in mine], bands)
    return sorted(found, key=lambda c: (-c.matched, c.criteria, c.criteria_hash, c.judge_fingerprint))
