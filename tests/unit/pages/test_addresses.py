"""The address of a page: what the page would pass over is said, or the list looks narrower than it is."""

import pytest

from tarsy_scoring.web.pages.forms import faults_of_address

KNOWN = ("min", "label")


@pytest.mark.parametrize(
    ("query", "words"),
    [
        pytest.param(b"min_score=90", "min_score: this page knows no such field", id="as the API spells it"),
        pytest.param(b"b=1&a=1&min=3", "a, b: this page knows no such field", id="several"),
        pytest.param(b"%3Cb%3E=1", "a field of the address: this page knows", id="a name that is none"),
        pytest.param(b"label=a%3Db&label=a%3Dc", "label: it stands in the address more than once", id="twice"),
        pytest.param(b"label=a%3Db&label=", "label: it stands in the address more than once", id="twice, once empty"),
        pytest.param(b"min=%FF", "address: what stands behind its ?", id="no UTF-8"),
    ],
)
def test_what_a_page_would_pass_over_is_a_fault(query: bytes, words: str) -> None:
    """One sentence that names the field."""
    [fault] = faults_of_address(query, KNOWN)
    assert fault.startswith(words)


@pytest.mark.parametrize("query", [b"", b"min=1&label=a%3Db", b"min=&label=", b"other=", b"min=%C3%A4"])
def test_what_a_page_looks_at_is_none(query: bytes) -> None:
    """An empty field asks for nothing, whatever its name."""
    assert faults_of_address(query, KNOWN) == []
