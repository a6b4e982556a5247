"""What a module shares is made anew for a test that is tried again: the first try has left its mark on it."""

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """
    End what the fixtures of the module have made, where pytest-rerunfailures begins a second try.

    Without that a second try would find the sessions, scores and faults of the first, and its ids used up: what went
    wrong once by chance would go wrong again for certain. What all modules share has nothing of a test in it.
    """
    if getattr(item, "execution_count", 1) == 1 or not isinstance(item, pytest.Function):
        return
    for definitions in item._fixtureinfo.name2fixturedefs.values():
        for fixture in definitions:
            if fixture.scope == "module":
                fixture.finish(item._request)  # the next to ask for it has it made
