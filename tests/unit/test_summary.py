"""The sentence of the judge that lists, pages and events show."""

from tables import table
from tarsy_scoring.scores.document import SUMMARY_CHARACTERS, summary_of


@table
def test_a_score_has_one_sentence(analysis: str | None, summary: str | None) -> None:
    assert summary_of(analysis) == summary


def test_a_long_sentence_is_cut_between_words() -> None:
    summary = summary_of("word " * 200) or ""
    assert len(summary) <= SUMMARY_CHARACTERS
    assert summary.endswith("word …")
