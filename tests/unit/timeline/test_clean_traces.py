"""Clean sessions of ten programs keep their text: no statement is found, and only secrets are masked."""

import re

import pytest
from sessions import NONCE, PLENTY

from clean_traces import TRACES
from tarsy_scoring.timeline.render.context import build_context


@pytest.mark.parametrize("name", TRACES)
def test_a_clean_trace_stays_as_it_is(name: str) -> None:
    trace = TRACES[name]

    context = build_context(trace.session, NONCE, PLENTY)

    assert (context.injections, context.flags) == ((), frozenset())
    assert len(re.findall(r"\[REDACTED:\w+", context.alert + context.conversation)) == trace.secrets
    assert len(context.conversation) < 4_000  # no picture
