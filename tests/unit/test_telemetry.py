"""Metrics are told in the documentation, and log lines give no credentials away."""

from pathlib import Path

import pytest

from tarsy_scoring.telemetry import Metrics, hide_credentials

OPERATIONS = Path(__file__).resolve().parents[2] / "docs" / "operations.md"


def test_every_metric_is_documented() -> None:
    """A metric that the operations page does not name is one that nobody will look at."""
    page = OPERATIONS.read_text(encoding="utf-8")

    metrics = {metric.name for metric in Metrics().registry.collect()}

    assert metrics
    assert [name for name in sorted(metrics) if f"`{name}" not in page] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("postgresql://me:secret@db:5432/x", "postgresql://***@db:5432/x", id="user-and-password"),
        pytest.param("cannot reach https://token@host/v1", "cannot reach https://***@host/v1", id="token-alone"),
        pytest.param("mail to me@example.com", "mail to me@example.com", id="an-address-is-no-credential"),
        pytest.param("two a://b:c@d e://f:g@h", "two a://***@d e://***@h", id="every-url"),
    ],
)
def test_credentials_in_urls_are_hidden(text: str, expected: str) -> None:
    """Driver errors quote connection strings; a log line never shows their user and password."""
    assert hide_credentials(None, "info", {"reason": text, "n": 1}) == {"reason": expected, "n": 1}
