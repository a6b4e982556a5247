"""`calibrate LABELS.csv`: measures how well the judge agrees with people's labels."""

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, get_args

import click
from pydantic import AwareDatetime, BaseModel, Field, ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tarsy_scoring.commands.shared import FAILED, print_json, require_criteria, run, settings_of_environment
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.judge.criteria import CriteriaRegistry, load_criteria
from tarsy_scoring.records.judgements import known_criteria, scores_by_judge
from tarsy_scoring.records.labels import labelled_score
from tarsy_scoring.statistics import calibration
from tarsy_scoring.statistics.agreement import Band, Estimate, bands_of
from tarsy_scoring.statistics.calibration import Calibration, Label, LabelledScore, read_labels
from tarsy_scoring.wiring import open_migrated_parts

BandsByHash = dict[str, tuple[Band, ...]]


@click.command()
@click.argument("labels_file", metavar="LABELS.csv", type=click.Path(path_type=Path))
@click.option("--criteria", metavar="NAME", help="Only scores under these criteria.")
@click.option(
    "--scores",
    "scores_file",
    metavar="FILE.jsonl",
    type=click.Path(path_type=Path),
    help="Read score documents of `score --json` from this file, not from the database.",
)
@click.option(
    "--column",
    "columns",
    metavar="FIELD=NAME",
    multiple=True,
    help=f"Name of a column in the file: {', '.join(calibration.COLUMNS)}. Repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def calibrate(
    labels_file: Path, criteria: str | None, scores_file: Path | None, columns: tuple[str, ...], as_json: bool
) -> None:
    """
    Measure how well the judge agrees with labels, for each criteria and judge fingerprint.

    LABELS.csv has a header and a line per label: `session_id`, `outcome` (correct, partial, wrong; accurate,
    partially_accurate, inaccurate; a band's id; unknown), or `number` (0-100), or both; also `labeller`
    and `selection` (`random`, or `picked` for sessions chosen for review, which are left out because
    they are not representative). Exit status 1: no label matches a score.

    An outcome states whether the answer was right. Criteria that judge the conduct of the investigation
    measure something else, so full agreement is not to be expected.
    """
    settings = settings_of_environment()
    registry = load_criteria(settings.config.criteria_dirs)
    own_columns = _columns(columns)
    if scores_file is None:
        labels, scores, bands = run(_with_database(settings, registry, labels_file, own_columns, criteria))
    else:
        found_scores = _read_scores(scores_file)
        if criteria is not None:
            require_criteria(registry, criteria, also={s.criteria for s in found_scores})
        scores = [s for s in found_scores if criteria in (None, s.criteria)]
        bands = _bands_of_registry(registry, scores)
        labels = read_labels(labels_file, own_columns, _band_ids(registry, bands))
    found = calibration.calibrate(labels, scores, bands)
    if as_json:
        print_json(_document(labels, found))
    else:
        _show(labels, found)
    sys.exit(0 if any(c.matched for c in found) else FAILED)


def _columns(given: Iterable[str]) -> dict[calibration.Field, str]:
    columns: dict[calibration.Field, str] = {}
    known = ", ".join(calibration.COLUMNS)
    for item in given:
        what, equals, name = item.partition("=")
        fields = [f for f in get_args(calibration.Field) if f == what]
        if not (fields and equals and name.strip()):
            raise click.BadParameter(f"{item!r} is not FIELD=NAME with one of {known}", param_hint="--column")
        columns[fields[0]] = name
    return columns


# --- scores from the database --------------------------------------------------------------------------


async def _with_database(
    settings: Settings,
    registry: CriteriaRegistry,
    labels_file: Path,
    columns: Mapping[calibration.Field, str],
    criteria: str | None,
) -> tuple[list[Label], list[LabelledScore], BandsByHash]:
    async with open_migrated_parts(settings) as parts:
        names, bands = await known_criteria(parts.database)
        if criteria is not None:
            require_criteria(registry, criteria, also=names)
        # Bands first, because labels may name their ids.
        labels = read_labels(labels_file, columns, _band_ids(registry, bands))
        sessions = sorted({label.session_id for label in labels})
        return labels, await scores_by_judge(parts.database, sessions, criteria), bands


# --- scores from a file --------------------------------------------------------------------------------


class _ScoreDocument(BaseModel):
    """The fields read from a score document; others are ignored."""

    session_id: str
    status: str
    purpose: str
    completed_at: AwareDatetime | None
    total_score: Annotated[int, Field(ge=0, le=100)] | None
    criteria: str | None
    criteria_hash: str | None
    judge_fingerprint: str | None
    judge_outcome: str | None


def _read_scores(path: Path) -> list[LabelledScore]:
    """
    Read the scores of a file of score documents, latest last. Documents without a total are skipped.

    Raises:
        ConfigurationError: The file cannot be read, or contains something other than score documents.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"cannot read {path}: it is not UTF-8") from error
    documents = []
    for line, found in _documents(text, str(path)):
        try:
            document = _ScoreDocument.model_validate(found)
        except ValidationError as error:
            fault = error.errors(include_input=False, include_url=False)[0]
            why = ": ".join([*map(str, fault["loc"]), fault["msg"]])
            raise ConfigurationError(
                f"{path}, line {line}: not a score document as `score FILE --json` prints it: {why}"
            ) from None
        if document.status == "completed" and document.purpose == "production" and document.total_score is not None:
            documents.append(document)
    documents.sort(key=lambda d: d.completed_at or datetime.min.replace(tzinfo=UTC))
    return [labelled_score(d.model_dump()) for d in documents]


def _documents(text: str, where: str) -> Iterator[tuple[int, Any]]:
    """Each JSON document of a concatenated text, with the line where it begins."""
    decoder, line, read = json.JSONDecoder(), 1, 0
    while (start := _NO_SPACE.search(text, read)) is not None:
        line += text.count("\n", read, start.start())
        try:
            document, end = decoder.raw_decode(text, start.start())
        except json.JSONDecodeError as error:
            raise ConfigurationError(f"{where}, line {error.lineno}: not JSON: {error.msg}") from None
        yield line, document
        line += text.count("\n", start.start(), end)
        read = end


_NO_SPACE = re.compile(r"\S")


def _bands_of_registry(registry: CriteriaRegistry, scores: Iterable[LabelledScore]) -> BandsByHash:
    """Bands of the criteria with that hash, else of that name, because a changed prompt seldom moves bands."""
    by_hash = {c.criteria_hash: bands_of(c.bands) for c in registry}
    by_name = {c.name: by_hash[c.criteria_hash] for c in registry}
    return {
        s.criteria_hash: by_hash.get(s.criteria_hash) or by_name[s.criteria]
        for s in scores
        if s.criteria_hash in by_hash or s.criteria in by_name
    }


def _band_ids(registry: CriteriaRegistry, bands: BandsByHash) -> set[str]:
    """Every band id that a label may name."""
    return {name for c in registry for name in c.bands} | {band.id for each in bands.values() for band in each}


# --- output --------------------------------------------------------------------------------------------


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
