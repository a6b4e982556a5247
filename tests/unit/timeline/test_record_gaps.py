"""Results that the record holds only in part, and sessions recorded without any call of a tool."""

import pytest
from sessions import NONCE, PLENTY, call, entry_text, event, execution, of_events, stage, timeline

from cpu import cpu_s
from tables import table
from tarsy_scoring.scoring.columns import evidence_of
from tarsy_scoring.timeline.model import AvailableTool, Event, Timeline
from tarsy_scoring.timeline.record_gaps import find_gaps
from tarsy_scoring.timeline.render.context import build_context

LISTING = "".join(f"pod/geo-{n:x}  1/1  Running  {n}s on node-{n % 7}\n" for n in range(300, 900))


def windows(length: int, count: int) -> list[Event]:
    """Results of one length, which end anywhere in a line."""
    starts = [n * 37 for n in range(count)]
    return [call(LISTING[start : start + length], number=n) for n, start in enumerate(starts)]


def cut_in(*events: Event) -> int:
    return find_gaps(of_events(*events)).cut_results


# --- one length ------------------------------------------------------------------------------------------


def test_results_of_one_length_are_cut() -> None:
    whole = call("deployment.apps/geo restarted\n", number=50)
    failed = call("Error from server: " + "x" * 900, number=51, is_error=True)

    gaps = find_gaps(of_events(*windows(431, 4), whole, failed))

    assert (gaps.cut_results, gaps.common_length, gaps.at_common_length) == (4, 431, 4)
    assert whole not in gaps.cut
    assert failed not in gaps.cut


@pytest.mark.parametrize(("length", "count", "cut"), [(500, 2, 2), (1024, 2, 2), (431, 2, 0), (500, 1, 0), (60, 9, 0)])
def test_number_of_results_that_show_a_limit(length: int, count: int, cut: int) -> None:
    """A pair shows it where the number is one that people choose; short texts never do."""
    assert cut_in(*windows(length, count)) == cut


def test_whole_results_of_one_length_are_not_cut() -> None:
    """The same text again, texts of one form, texts that end properly, and texts shorter than another one."""
    length = 500
    forms = [f"{'report of the hour ' * 20} pod web-{n} has {n}0 requests" for n in range(1, 8)]
    closed = [call(LISTING[n * 37 :][: length - 1] + "\n", number=n) for n in range(6)]
    assert cut_in(*(call(LISTING[:length], number=n) for n in range(5))) == 0
    assert cut_in(*(call(text, number=n) for n, text in enumerate(forms))) == 0
    assert cut_in(*closed) == 0
    assert cut_in(*windows(length, 5), call(LISTING[: length + 1], number=9)) == 0


def test_length_that_the_agent_asked_for_is_no_cut_of_the_recorder() -> None:
    texts = [LISTING[n * 37 :][:500] for n in range(4)]
    asked = [call(t, number=n, arguments='{"cmd": "head -c 500 log"}') for n, t in enumerate(texts)]
    other = [call(t, number=n, arguments='{"port": 15000}') for n, t in enumerate(texts)]

    assert cut_in(*asked) == 0
    assert cut_in(*other) == 4


# --- markers ---------------------------------------------------------------------------------------------


@table
def test_marker_at_the_end(ending: str) -> None:
    assert cut_in(call(f"pod web-1 restarts\nfield is im{ending}")) == 1


@table
def test_text_that_is_no_marker(text: str) -> None:
    assert cut_in(call(text)) == 0


# --- no call ---------------------------------------------------------------------------------------------

ANSWER = event("final_analysis", "the image is missing")


def test_final_texts_alone_are_no_record_of_the_work() -> None:
    alone = of_events(event("error", "validation failed"), ANSWER)

    assert not find_gaps(alone).calls_recorded
    assert "no call of a tool, so what the agents saw is unknown" in build_context(alone, NONCE, PLENTY).not_shown[0]


@pytest.mark.parametrize(
    "session",
    [
        of_events(call("ok"), ANSWER),
        of_events(event("llm_thinking", "I need no tool"), ANSWER),
        of_events(event("google_search_result", "nothing"), ANSWER),
        of_events(ANSWER, available_tools=(AvailableTool("kubectl", "get"),)),
        of_events(event("error", "no connection")),
        of_events(event("final_analysis", "  ")),
        timeline(stage(execution(ANSWER), stage_type="synthesis")),
    ],
    ids=["a call", "reasoning", "a search", "tools that were not called", "no text", "empty text", "no investigation"],
)
def test_record_that_shows_what_the_agents_did(session: Timeline) -> None:
    assert find_gaps(session).calls_recorded


# --- what the judge and the score say --------------------------------------------------------------------


def test_cut_results_are_marked_counted_and_stored() -> None:
    session = of_events(*windows(500, 3), call("im... [truncated]", number=8), call("whole\n", number=9))

    fitted = build_context(session, NONCE, PLENTY)

    for entry in ("E2", "E3", "E4", "E5"):
        assert (entry_text(fitted, entry) or "").endswith("\n[... cut here in the record ...]\n")
    assert (entry_text(fitted, "E6") or "").endswith("| whole\n")
    assert fitted.not_shown == (
        "the ends of 4 tool results (3 at 500 characters), which the recorder cut at the mark "
        "[... cut here in the record ...]: the agents may have seen more of them",
    )
    stored = evidence_of(session)
    assert (stored["cut_by_source"], stored["calls_recorded"]) == (4, True)


def test_mark_outlives_shortening() -> None:
    """And stays within the budget."""
    session = of_events(*windows(5_000, 5))

    fitted = build_context(session, NONCE, 1_500)

    assert fitted.cut_entries == ("E2", "E3", "E4", "E5", "E6")
    assert fitted.tokens <= 1_500
    assert all((entry_text(fitted, e) or "").endswith("cut here in the record ...]\n") for e in fitted.cut_entries)


def test_results_of_hidden_stages_do_not_count() -> None:
    hidden = stage(execution(*windows(500, 5)), name="talk", stage_type="chat")
    gaps = find_gaps(timeline(stage(execution(call("ok"), ANSWER)), hidden))
    assert (gaps.cut_results, gaps.common_length, gaps.calls_recorded) == (0, None, True)


@pytest.mark.parametrize("text", ["[" * 300_000, "(truncated" * 30_000, "[9" + "9" * 300_000, "." * 300_000])
def test_hostile_results_take_little_time(text: str) -> None:
    session = of_events(*(call(text[n:], number=n) for n in range(8)))

    assert cpu_s(lambda: find_gaps(session)) < 1
