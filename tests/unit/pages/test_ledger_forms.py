"""What the forms of the page of missing tools say, and what they refuse."""

import pytest

from tarsy_scoring.web.api.ledger import MergeRequest, SayingRequest
from tarsy_scoring.web.pages.forms import MAX_FIELDS, form_fields, read_as
from tarsy_scoring.web.problems import Problem


def test_a_state() -> None:
    """As a browser writes it: spaces as +, what is left empty not at all."""
    found = read_as(SayingRequest, form_fields(b"tool=Node+Pressure&state=planned&note="))

    assert (found.tool, found.state, found.note, found.since) == ("Node Pressure", "planned", None, None)


def test_a_name_without_a_tool_is_kept_apart() -> None:
    found = read_as(MergeRequest, form_fields(b"name=tail%5Flogs&tool="))

    assert (found.name, found.tool) == ("tail_logs", None)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        pytest.param(b"state=planned", "`tool`", id="no-tool"),
        pytest.param(b"tool=x&state=confirmed", "`state`", id="measured-and-not-said"),
        pytest.param(b"tool=x&state=open&by=eve", "`by`", id="a-field-of-others"),
        pytest.param(b"tool=%00&state=open", "`tool`", id="nul"),
        pytest.param(b"tool=x&state=built&since=soon", "`since`", id="no-time"),
        pytest.param(b"tool=\xff&state=open", "cannot be read", id="no-form"),
        pytest.param(b"&".join(b"a=1" for _ in range(MAX_FIELDS + 1)), "cannot be read", id="too-many-fields"),
    ],
)
def test_what_is_refused(body: bytes, says: str) -> None:
    """422, with the field and not with what it held."""
    with pytest.raises(Problem) as caught:
        read_as(SayingRequest, form_fields(body))

    assert caught.value.status == 422
    assert says in str(caught.value)
