"""Recorded replies give the stored report: extraction, citations, follow-up and statistics together."""

import json
from pathlib import Path

import pytest

from bench_replay import replay, sets


@pytest.mark.parametrize("folder", sets(), ids=lambda folder: folder.name)
async def test_recorded_replies_give_the_stored_report(folder: Path) -> None:
    """`python tests/bench_replay.py --write` stores another report where it is meant to differ."""
    assert await replay(folder) == json.loads((folder / "expected.json").read_text(encoding="utf-8"))
