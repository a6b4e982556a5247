"""Reads labels from a CSV file."""

import csv
import io
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.events import SESSION_ID_PATTERN
from tarsy_scoring.labels.calibration import Label, read_outcome
from tarsy_scoring.scores.bands import DEFAULT_BANDS


def read_labels(path: Path, band_ids: Collection[str] = ()) -> list[Label]:
    """
    Read labels from a CSV file with a header, one per line, in UTF-8.

    Every line has a `session_id` and an `outcome` (a word of `OUTCOME_WORDS` or a band's id; empty or
    `unknown`: undecided), a `number` of 0-100, or both. `selection` is `random` (the default) or `picked`.
    Other columns are not read.

    Args:
        band_ids: Ids of bands that an outcome may name, in addition to `DEFAULT_BANDS`.

    Raises:
        ConfigurationError: The file cannot be read or a line is invalid; with line and reason.
    """
    known_bands = {*band_ids, *(b.id for b in DEFAULT_BANDS)}
    with open_csv(path) as (header, lines):
        if "session_id" not in header or not {"outcome", "number"}.intersection(header):
            raise ConfigurationError(
                f"{path} needs the columns 'session_id' and 'outcome' or 'number' (it has: {', '.join(header)})"
            )
        labels = [_label(line, known_bands) for line in lines]
    numbers = [label.number for label in labels if label.number is not None]
    if numbers and 0 < max(numbers) <= 1:
        raise ConfigurationError(
            f"{path}: every value of the column 'number' is between 0 and 1; labels are 0-100, as totals are"
        )
    return labels


@contextmanager
def open_csv(path: Path) -> Iterator[tuple[Sequence[str], Iterator[Mapping[str, str]]]]:
    """
    Read a CSV file in UTF-8: the column names in lower case, and each line's cells by them.

    Raises:
        ConfigurationError: The file cannot be read, or reading a line raises ValueError; with line and reason.
    """
    try:
        reader = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig")), strict=True)
        reader.fieldnames = [name.strip().casefold() for name in reader.fieldnames or ()]
        yield reader.fieldnames, map(_cells, reader)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8; export it as CSV in UTF-8"
        raise ConfigurationError(f"cannot read {path}: {why}") from error
    except (ValueError, csv.Error) as error:
        raise ConfigurationError(f"{path}, line {reader.line_num}: {error}") from None


def _cells(line: Mapping[str | Any, str | Any]) -> Mapping[str, str]:
    if None in line or None in line.values():
        raise ValueError("the line and the header have different numbers of fields")
    return {name: cell.strip() for name, cell in line.items()}


def _label(cells: Mapping[str, str], band_ids: set[str]) -> Label:
    session_id = cells["session_id"]
    if SESSION_ID_PATTERN.fullmatch(session_id) is None:
        raise ValueError(f"{session_id[:80]!r} is not a session id")
    selection = cells.get("selection", "").casefold()
    if selection not in ("", "random", "picked"):
        raise ValueError(f"the selection is {selection[:80]!r}; it can be 'random' or 'picked'")
    return Label(
        session_id,
        read_outcome(cells.get("outcome", ""), band_ids),
        _number(cells.get("number", "")),
        "picked" if selection == "picked" else "random",
    )


def _number(text: str) -> float | None:
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{text[:80]!r} is not a number") from None
    if not 0 <= number <= 100:
        raise ValueError(f"the number is {text[:80]}; it must be 0-100")
    return number
