"""The sentence of the judge that lists, pages and events show."""

import pytest

from tarsy_scoring.scores.document import SUMMARY_CHARACTERS, summary_of

OUTCOME = """Intro first.

## Finding and outcome

The finding stands in E19: version 1.31 of `checkout-config` fills the cache, e.g. after a roll-out. E20 repeats it.

## The way there
It was direct."""


@pytest.mark.parametrize(
    ("analysis", "summary"),
    [
        pytest.param(
            OUTCOME,
            "The finding stands in E19: version 1.31 of `checkout-config` fills the cache, e.g. after a roll-out.",
            id="outcome-section",
        ),
        pytest.param("# Method\n\nIt looked twice. Then it stopped.", "It looked twice.", id="no-outcome-section"),
        pytest.param("1. **Was it direct?** Partly. No log.", "Was it direct? Partly.", id="question-with-its-answer"),
        pytest.param("Issues:\n- no log was read\n- two", "no log was read", id="list-without-full-stops"),
        pytest.param('It "ended." The rest', 'It "ended."', id="full-stop-in-quotation-marks"),
        pytest.param("## Outcome\n", None, id="heading-alone"),
        pytest.param("", None, id="empty"),
        pytest.param(None, None, id="no-judge"),
    ],
)
def test_a_score_has_one_sentence(analysis: str | None, summary: str | None) -> None:
    assert summary_of(analysis) == summary


def test_a_long_sentence_is_cut_between_words() -> None:
    summary = summary_of("word " * 200) or ""
    assert len(summary) <= SUMMARY_CHARACTERS
    assert summary.endswith("word …")
