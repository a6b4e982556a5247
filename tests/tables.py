"""
Tests over tables: the rows are in a JSON file beside the test file, and one test runs them all.

The file `test_x.json` maps the name of a test to its rows, and the name of a row to the arguments of the test.
"""

import functools
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def table(test: Callable[..., Any]) -> Callable[[], None]:
    """
    Run a test for every row of its table.

    Raises:
        ExceptionGroup: Rows failed. Each error carries the name of its row as a note.
    """
    file = Path(inspect.getfile(test)).with_suffix(".json")

    @functools.wraps(test)
    def run() -> None:
        rows: dict[str, list[Any]] = json.loads(file.read_text(encoding="utf-8"))[test.__name__]
        failures = []
        for name, arguments in rows.items():
            try:
                test(*arguments)
            except Exception as error:
                error.add_note(f"row {name!r} of {file.name}")
                failures.append(error)
        if failures:
            raise ExceptionGroup(f"{len(failures)} of {len(rows)} rows failed", failures)

    del run.__wrapped__  # type: ignore[attr-defined]  # pytest would take the arguments for fixtures
    return run
