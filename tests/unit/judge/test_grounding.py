"""Which citations of an analysis hold: ids of existing entries, and quotations from the cited entry."""

import json
import time
from dataclasses import astuple, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tables import table
from tarsy_scoring.judge.read.grounding import check_citations, citing_sentences, is_ungrounded
from tarsy_scoring.judge.verdict import Grounding
from tarsy_scoring.timeline.files import SessionFiles
from tarsy_scoring.timeline.render.context import FittedContext, build_context
from unit.timeline.sessions import NONCE, PLENTY, RECORDED_DIR, call, entry_text, event, of_events

TRUE, FALSE, NONE = Grounding(1, 1), Grounding(1, 0), Grounding(0, 0)

# E1 alert, E2 reasoning, E3 call, E4 call, E5 answer, E6 final analysis.
CONTEXT = build_context(
    of_events(
        event("llm_thinking", "The pod web-1 was not deleted, it was evicted by the kubelet.", number=1),
        call('{"reason": "OOMKilled", "exitCode": 137, "restarts": 5, "log": "one\\ntwo"}', number=2, name="get_pods"),
        call(
            "dial tcp 10.0.0.7:5432: connection refused\n  retry 3 of 5\nE11000 duplicate key",
            number=3,
            name="get_logs",
        ),
        event(
            "llm_response", "**Root cause:** the node ran out of memory… see `kube_node_status` and [E99].", number=4
        ),
        final_analysis="The node pool is too small; don't restart web-1 (load 1.5, delta -12).\n- cordon\n- drain",
    ),
    NONCE,
    PLENTY,
)


def check(analysis: str, context: FittedContext = CONTEXT) -> Grounding:
    """The counts alone."""
    return replace(check_citations(analysis, context), failed=())


# --- ids -----------------------------------------------------------------------------------------------


@table
def test_the_id_of_an_entry_is_a_true_citation(analysis: str) -> None:
    assert check(analysis) == TRUE


@table
def test_each_id_counts(analysis: str, checked: int, held: int) -> None:
    assert check(analysis) == Grounding(checked, held)


@table
def test_text_that_resembles_an_id_is_no_citation(text: str) -> None:
    assert check(f"It says {text} there.") == NONE


def test_a_code_that_the_evidence_holds_as_a_word_is_no_citation() -> None:
    """The judge names an error code there; a code that no entry holds is a citation that does not hold."""
    assert check("The insert failed with E11000.") == NONE
    assert check("The insert failed with E11001.") == FALSE


# --- quotations ----------------------------------------------------------------------------------------

REFUSED = 'E4 shows "connection refused" and no retry.'


@table
def test_a_quotation_from_the_cited_entry_holds(analysis: str) -> None:
    assert check(analysis) == TRUE


@table
def test_quotations_come_in_many_marks(form: str) -> None:
    assert check(f"E4: {form.format('retry 3 of 5')}") == TRUE
    assert check(f"E4: {form.format('retry 4 of 5')}") == FALSE


@table
def test_a_quotation_from_elsewhere_or_nowhere_does_not_hold(analysis: str) -> None:
    """Words and numbers must be whole, unchanged and in order, in an entry that the sentence names."""
    assert check(analysis) == FALSE


@table
def test_text_that_is_no_quotation_is_not_checked(analysis: str) -> None:
    assert check(analysis) == NONE


@table
def test_commands_and_code_are_no_citations(analysis: str) -> None:
    assert check(analysis) == NONE


@table
def test_a_quotation_belongs_to_the_entries_of_its_sentence(analysis: str, checked: int, held: int) -> None:
    assert check(analysis) == Grounding(checked, held)


def test_text_cut_from_the_context_cannot_be_quoted() -> None:
    session = of_events(call("first line\n" + "x y z 1 2 3\n" * 20_000 + "the very last line"))
    cut = build_context(session, NONCE, 5_000)

    assert check('E2: "the very last line"', cut) == TRUE
    assert check('E2: "first line … the very last line"', cut) == TRUE
    assert cut.cut_entries == ("E2",)
    whole = build_context(session, NONCE, PLENTY)
    middle = 'E2: "' + "x y z 1 2 3 " * 15_000 + 'x"'
    assert check(middle, whole) == TRUE
    assert check(middle, cut) == FALSE


# --- failures ------------------------------------------------------------------------------------------


@table
def test_a_citation_that_does_not_hold_has_its_reason(analysis: str, failed: list[list[str | None]]) -> None:
    """In order: the entry that is cited, the quotation, the reason, and the entry that has its text or its words."""
    assert [list(astuple(citation)) for citation in check_citations(analysis, CONTEXT).failed] == failed


def test_failures_are_bounded() -> None:
    """A judge controls the analysis, so it cannot fill the row of a score."""
    many = check_citations(" ".join(f'E4: "never {i} was there". E9{i}.' for i in range(500)), CONTEXT)
    long = check_citations(", ".join(f"E{i}" for i in range(2, 7)) * 50 + ' "' + "not that " * 9_000 + 'here"', CONTEXT)
    wide = check_citations(", ".join(f"E{i}" for i in range(9_000, 9_100)) + ' "never was there"', CONTEXT)

    assert (many.checked, many.held, len(many.failed)) == (1_000, 0, 20)
    assert [len(citation.quotation or "") for citation in long.failed] == [300]
    assert len(wide.failed[0].entry or "") < 100


def test_a_secret_of_the_session_is_masked_in_a_failure() -> None:
    """The judge sees masked text only, and quotes it."""
    context = build_context(of_events(call("password=hunter2hunter2 was rejected")), NONCE, PLENTY)
    marker = entry_text(context, "E2") or ""
    quoted = marker.partition("password=")[2].split()[0]

    (failed,) = check_citations(f'E1: "password={quoted} was rejected"', context).failed

    assert failed.quotation == "password=[REDACTED:password#1] was rejected"
    assert (failed.reason, failed.found_in) == ("other_entry", "E2")


RECORDED_REPLIES = Path(__file__).parents[4] / "shared/judge-replies"


@pytest.mark.skipif(not RECORDED_REPLIES.is_dir(), reason="recorded replies of judges are not part of the repository")
async def test_failures_of_recorded_judges() -> None:
    """The reason of each was read and found right. None is a command that the judge suggests."""
    contexts: dict[str, FittedContext] = {}
    checked, failed = 0, list[str]()
    for file in sorted(RECORDED_REPLIES.iterdir()):
        recorded = json.loads(file.read_bytes())
        session = recorded["session_id"]
        if session not in contexts:
            contexts[session] = build_context(await SessionFiles(RECORDED_DIR).fetch_timeline(session), NONCE, PLENTY)
        found = check_citations(recorded["replies"][0], contexts[session])
        checked += found.checked
        failed += [f"{c.reason} {c.entry} {c.quotation} {c.found_in}" for c in found.failed]

    assert failed == [
        "paraphrase None Only by a single pod E9",
        "not_there E8 already in use None",
        "paraphrase E9, E21, E25 no error in the log E9",
        "not_there E44 able to operate correctly None",
        "paraphrase E61 was not configured to pick up credentials E61",
    ]
    assert checked >= 1_300


# --- laws ----------------------------------------------------------------------------------------------


@table
def test_fewer_than_half_of_at_least_three_is_ungrounded(checked: int, held: int, expected: bool) -> None:
    assert is_ungrounded(Grounding(checked, held)) is expected


@given(
    st.lists(
        st.sampled_from([REFUSED, "E4 ", "E77 ", '"', "“", "”", "`", "\n", ". ", "retry 3 of 5", "-", "…", "\\"])
        | st.text(max_size=5)
    )
)
@settings(max_examples=300)
def test_never_more_hold_than_are_checked(pieces: list[str]) -> None:
    grounding = check("".join(pieces))

    assert 0 <= grounding.held <= grounding.checked


def test_no_more_than_a_thousand_quotations_are_searched() -> None:
    """A flood of quotations cannot block the service; those beyond the limit do not count as checked."""
    assert check('"retry 3 of 5" ' * 1_500) == Grounding(1_000, 1_000)


def test_citing_sentences_are_the_unit_of_a_citation() -> None:
    """Both ends of a range count, an id behind the full stop belongs to its sentence, and list marks are left out."""
    text = "It looked.\n\n- **Logs** of E3-E5\n  were read. It was refused. [E17] Then\u200b nothing"
    assert list(citing_sentences(text)) == [
        (("E3", "E5"), "**Logs** of E3-E5 were read."),
        (("E17",), "It was refused. [E17] Then nothing"),
    ]


@table
def test_a_hostile_analysis_is_read_in_linear_time(unit: str) -> None:
    for before, after in [("", ""), ('"a a a ', ' a" E4')]:
        analysis = before + unit * (50_000 // len(unit)) + after
        started = time.thread_time()

        check(analysis)

        assert time.thread_time() - started < 2.5, unit


def test_hostile_evidence_is_searched_in_linear_time() -> None:
    context = build_context(
        of_events(event("llm_thinking", "ab" * 150_000), event("llm_thinking", "a " * 150_000)), NONCE, PLENTY
    )
    started = time.thread_time()

    assert check('"' + "ab" * 10_000 + ' c d"', context) == FALSE
    assert check('"' + "ab" * 10_000 + '"', context) == FALSE
    assert check('"' + "a " * 10_000 + 'b"', context) == FALSE
    assert time.thread_time() - started < 5
