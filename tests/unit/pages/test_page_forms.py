"""Forms of pages: the queries they give, and the mistakes they report."""

from datetime import UTC, date, datetime
from urllib.parse import urlencode

import pytest

from tarsy_scoring.analytics.daily import Selection
from tarsy_scoring.scores.session_list import Filters
from tarsy_scoring.web.api.ledger import MergeRequest, SayingRequest
from tarsy_scoring.web.edge.problems import Problem
from tarsy_scoring.web.pages.forms import MAX_FIELDS, form_fields, read_as
from tarsy_scoring.web.pages.labelling import read_label_form
from tarsy_scoring.web.pages.period import KIND, PeriodForm, read_period_form
from tarsy_scoring.web.pages.sessions import FIELDS
from tarsy_scoring.web.queries import Form, SessionsQuery, read_form

TODAY = date(2026, 3, 31)


def read_list_form(query: bytes) -> Form[SessionsQuery]:
    return read_form(query, SessionsQuery, FIELDS)


def list_form(**fields: str) -> Form[SessionsQuery]:
    return read_list_form(urlencode(fields).encode())


def period_form(**fields: str) -> PeriodForm:
    return read_period_form(urlencode(fields).encode(), TODAY, KIND)


# --- the list of sessions ------------------------------------------------------------------------------


def test_empty_fields_are_no_filters() -> None:
    found = list_form(q="", chain=" ", status="", min_score="", max_score="", label="", flag="", sort="", other="")
    assert (found.query, found.faults) == (SessionsQuery(), [])


def test_every_field_is_a_filter() -> None:
    fields = {"q": "pod", "chain": "k", "status": "failed", "min_score": "10", "max_score": "49", "criteria": "c"}
    fields |= {"label": "team = a=b", "flag": "ungrounded", "outcome": "fail", "sort": "score_asc", "cursor": "x"}
    found = list_form(**fields, since="2026-03-01", until="2026-03-01")
    assert found.query is not None
    assert (found.faults, found.query.sort, found.query.cursor) == ([], "score_asc", "x")
    assert found.query.filters(found.query.status) == Filters(
        chain="k",
        status="failed",
        min_score=10,
        max_score=49,
        criteria="c",
        labels={"team": "a=b"},
        flag="ungrounded",
        outcome="fail",
        since=datetime(2026, 3, 1, tzinfo=UTC),
        until=datetime(2026, 3, 2, tzinfo=UTC),
        prefix="pod",
    )


def test_invalid_fields_are_reported_and_kept_in_the_form() -> None:
    mistakes = [
        *(("min_score", "101"), ("min_score", "-1"), ("max_score", "5.5"), ("max_score", "٣"), ("label", "team")),
        *(
            ("max_score", "9" * 300),
            ("label", "=a"),
            ("status", "lost"),
            ("sort", "random"),
            ("outcome", "maybe"),
            ("since", "yesterday"),
        ),
        *(("until", "2026-02-30"), ("until", "9999-12-31"), ("q", "a\0b"), ("q", "x" * 256)),
    ]
    for name, value in mistakes:
        found = list_form(**{name: value})
        assert [fault.partition(":")[0] for fault in found.faults] == [name], value
        assert found.values[name] == value
        assert found.query is None
    assert list_form(min_score="60", max_score="40").faults == ["`min_score` must not be above `max_score`"]
    assert list_form(since="2026-03-02", until="2026-03-01").faults == ["`since` must be before `until`"]


def test_an_address_that_the_page_would_misread_is_a_fault() -> None:
    """An ignored filter would make the list look narrower than it is."""
    for query, fault in (
        (b"min=90", "the address has a field that this page does not have"),
        (b"label=a%3Db&label=a%3Dc", "label: given more than once"),
        (b"label=a%3Db&label=", "label: given more than once"),
    ):
        [found] = read_list_form(query).faults
        assert found.startswith(fault), query


# --- pages across sessions -----------------------------------------------------------------------------


def test_without_days_the_period_is_the_last_ninety_days() -> None:
    found = period_form(chain=" databases ")
    assert found.values == {"chain": "databases", "criteria": "", "since": "2026-01-01", "until": ""}
    assert found.selection == Selection("databases", None, datetime(2026, 1, 1, tzinfo=UTC), None)
    assert read_period_form(b"", TODAY).values["since"] == "2026-01-01"


def test_both_days_are_included() -> None:
    found = period_form(since="2026-02-28", until="2026-02-28")
    days = [datetime(2026, 2, 28, tzinfo=UTC), datetime(2026, 3, 1, tzinfo=UTC)]
    assert [found.selection.since, found.selection.until] == days


def test_a_page_knows_the_fields_of_its_own_form_only() -> None:
    [fault] = read_period_form(b"day_of=ended", TODAY, KIND).faults
    assert fault.endswith("it has chain, criteria, since, until, reference")
    faults = period_form(reference="beauty", since="soon").faults
    assert [fault.partition(":")[0] for fault in faults] == ["since", "reference"]


# --- forms that are sent with POST ---------------------------------------------------------------------


def test_a_tool_form_is_read_as_a_request_of_the_api() -> None:
    found = read_as(SayingRequest, form_fields(b"tool=Node+Pressure&state=planned&note="))
    assert (found.tool, found.state, found.note, found.since) == ("Node Pressure", "planned", None, None)
    merge = read_as(MergeRequest, form_fields(b"name=tail%5Flogs&tool="))
    assert (merge.name, merge.tool) == ("tail_logs", None)


def test_an_invalid_tool_form_is_refused() -> None:
    for body, says in (
        (b"state=planned", "`tool`"),
        (b"tool=x&state=confirmed", "`state`"),
        (b"tool=x&state=open&by=eve", "`by`"),
        (b"tool=%00&state=open", "`tool`"),
        (b"tool=x&state=built&since=soon", "`since`"),
        (b"tool=\xff&state=open", "cannot be read"),
        (b"&".join([b"a=1"] * (MAX_FIELDS + 1)), "cannot be read"),
    ):
        with pytest.raises(Problem, match=says) as refused:
            read_as(SayingRequest, form_fields(body))
        assert refused.value.status == 422


def label(**fields: str) -> bytes:
    return urlencode(fields).encode()


def test_a_label_form_is_read_as_a_label() -> None:
    for fields, expected in (
        ({"said": "agrees"}, (True, None, None, None)),
        ({"said": "agrees", "reason": " shown "}, (True, None, None, "shown")),
        ({"said": "outcome:wrong", "number": "12.5"}, (False, "wrong", 12.5, None)),
        ({"said": "", "number": "12.5"}, (None, None, 12.5, None)),
        ({"said": "", "number": "0"}, (None, None, 0.0, None)),
    ):
        found = read_label_form(label(**fields))
        assert (found.agrees, found.outcome, found.number, found.reason) == expected


def test_an_invalid_label_form_is_refused_without_quoting_it() -> None:
    for body, says in (
        (label(reason="hm"), "label is empty"),
        (label(said="agrees", number="50"), "either `agrees`, or"),
        (label(number="101"), "number"),
        (label(number="1,000"), "number"),
        (label(number="much"), "number"),
        (label(said="agrees", reason="x" * 4001), "reason"),
        (label(said="agrees", reason="\0"), "reason"),
        (b"\xff", "reload"),
    ):
        with pytest.raises(Problem, match=says) as refused:
            read_label_form(body)
        assert refused.value.status == 422
        assert "xxx" not in refused.value.detail
