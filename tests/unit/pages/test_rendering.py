"""Frame of a page, static files, and values and criteria as text."""

import re
from importlib import resources

import pytest

from tarsy_scoring.web.pages import rendering
from tarsy_scoring.web.pages.rendering import page

STATIC = resources.files("tarsy_scoring.web.pages").joinpath("static")
TEMPLATES = resources.files("tarsy_scoring.web.pages").joinpath("templates")


def test_numbers_are_written_without_false_precision() -> None:
    """Unknown is not zero, and points have at most two decimals."""
    for form, cases in {
        rendering.usd: {
            None: "unknown",
            0.0: "$0.00",
            0.0473: "$0.0473",
            1234.5: "$1,234.50",
            0.00004: "less than $0.0001",
        },
        rendering.points: {
            None: "–",
            17: "17",
            16.5: "16.5",
            17.3333333: "17.33",
            1e6: "1000000",
            -0.001: "0",
            -2.5: "-2.5",
        },
        rendering.seconds: {None: "–", 1.25: "1.2 s", 600: "10 min 0 s", 7260: "2 h 1 min"},
    }.items():
        for number, text in cases.items():
            assert form(number) == text, (form, number)
    assert [rendering.usd(amount) for amount in (0.99996, 0.1 + 0.2, 0.5001)] == ["$1.00", "$0.30", "$0.50"]


@pytest.mark.parametrize("name", sorted(t.name for t in TEMPLATES.iterdir() if t.name.endswith(".html")))
def test_a_template_has_no_inline_script_or_style(name: str) -> None:
    """The content security policy would block them."""
    text = TEMPLATES.joinpath(name).read_text()
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:|\|\s*safe\b|autoescape", text)
    assert not re.search(r"<script(?![^>]*\ssrc=)", text)


def test_content_security_policy_blocks_other_sites() -> None:
    policy = page("problem.html", 404, problem=_Problem(), request_id="r", back="/").headers["Content-Security-Policy"]
    directives = dict(directive.split(" ", 1) for directive in policy.split("; "))
    ours = ("script-src", "style-src", "img-src", "connect-src", "form-action")
    nothing = dict.fromkeys(("default-src", "base-uri", "frame-ancestors", "trusted-types"), "'none'")
    assert directives == dict.fromkeys(ours, "'self'") | nothing | {"require-trusted-types-for": "'script'"}


class _Problem:
    title, detail, status = "<b>Title</b>", "what \u202e<script>", 404
    extra = {"errors": [{"loc": ["a", 1], "msg": "<i>"}]}  # noqa: RUF012
    headers = {}  # noqa: RUF012
