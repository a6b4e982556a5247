"""numpy and scipy are imported beside the event loop, and once."""

import asyncio
import importlib
import sys
import threading

import pytest

from tarsy_scoring.statistics.loading import LAST, begin_to_load


async def test_the_import_is_made_once_and_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop answers other requests meanwhile."""
    threads, has_imported = list[threading.Thread](), threading.Event()

    def load(name: str) -> None:
        threads.append(threading.current_thread())
        monkeypatch.setitem(sys.modules, name, sys)
        has_imported.set()

    monkeypatch.setattr(importlib, "import_module", load)
    monkeypatch.delitem(sys.modules, LAST, raising=False)
    begin_to_load()
    assert await asyncio.to_thread(has_imported.wait, 30)
    begin_to_load()

    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()
