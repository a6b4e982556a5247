"""A test that is tried again finds nothing of its first try."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
# All but one fail at their first try: for what they left in the house, in a fixture, and as the last of the module.
MODULE = """
import pytest
import pytest_asyncio

pytestmark = pytest.mark.asyncio(loop_scope="module")
told, tries = [], []

@pytest.fixture(scope="session")
def ground():
    told.append("ground")
    yield
    assert told == ["ground", *["house", "no house"] * 4]

@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(ground):
    told.append("house")
    yield set()
    told.append("no house")

@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def furnished(house):
    tries.append("furnished")
    assert tries.count("furnished") > 1
    house.add("chair")
    yield house

async def test_first(house):
    assert house == set()
    house.add("guest")
    tries.append("first")
    assert tries.count("first") > 1

async def test_that_is_not_tried_again(house):
    assert house == {"guest"}

async def test_in_a_fixture(furnished):
    assert furnished == {"chair"}

async def test_last(furnished):
    tries.append("last")
    assert tries.count("last") > 1
    assert furnished == {"chair"}
"""


def test_what_a_module_shares_is_made_anew_for_a_second_try(tmp_path: Path) -> None:
    """Once more for each test that failed, and ended each time; what all modules share stays."""
    (tmp_path / "test_shared.py").write_text(MODULE)
    options = ["-p", "trying_again", "-p", "no:cacheprovider", "--reruns=1", "-o", "asyncio_mode=strict"]

    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test_shared.py"],
        env=os.environ | {"PYTHONPATH": str(TESTS), "PYTEST_ADDOPTS": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert "4 passed, 3 rerun" in ended.stdout, ended.stdout
