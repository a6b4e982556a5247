"""
Tests over tables: the rows are in a JSON file beside the test file, and one test runs them all.

The file `test_x.json` maps the name of a test to its rows, and the name of a row to the arguments of the test.
"""

import contextlib
import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def table(test: Callable[..., Any]) -> Callable[[], Any]:
    """
    Run a test, async or not, for every row of its table. Its keyword-only arguments are fixtures, shared by all rows.

    Raises:
        ExceptionGroup: Rows failed. Each error carries the name of its row as a note.
    """
    file = Path(inspect.getfile(test)).with_suffix(".json")
    failures: list[Exception] = []

    def rows() -> Iterator[tuple[str, list[Any]]]:
        failures.clear()
        named: dict[str, list[Any]] = json.loads(file.read_text(encoding="utf-8"))[test.__name__]
        yield from named.items()
        if failures:
            raise ExceptionGroup(f"{len(failures)} of {len(named)} rows failed", failures)

    @contextlib.contextmanager
    def row(name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            error.add_note(f"row {name!r} of {file.name}")
            failures.append(error)

    if inspect.iscoroutinefunction(test):

        async def run_async(**fixtures: Any) -> None:
            for name, arguments in rows():
                with row(name):
                    await test(*arguments, **fixtures)

        return _renamed(run_async, test)

    def run(**fixtures: Any) -> None:
        for name, arguments in rows():
            with row(name):
                test(*arguments, **fixtures)

    return _renamed(run, test)


def _renamed(run: Callable[[], Any], test: Callable[..., Any]) -> Callable[[], Any]:
    # `functools.wraps` would set `__wrapped__`, from which pytest takes the arguments for fixtures.
    run.__name__, run.__qualname__, run.__doc__, run.__module__ = (
        test.__name__,
        test.__qualname__,
        test.__doc__,
        test.__module__,
    )
    parameters = inspect.signature(test).parameters.values()
    fixtures = [p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
    run.__signature__ = inspect.Signature(fixtures)  # type: ignore[attr-defined]
    return run
