"""How rolling signals read the end of a score from an event, cut windows, and set up Faust."""

import json
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from faust.auth import OAuthCredentials, SASLCredentials

from secured_kafka import Authority
from tables import table
from tarsy_scoring.commands.insights import insights
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.signals.consumer import credentials, faust_app, read_ended_chain
from tarsy_scoring.signals.figures import windows_at

EXAMPLES = Path(__file__).resolve().parents[3] / "schemas" / "examples"
COMPLETED: dict[str, Any] = json.loads((EXAMPLES / "scoring-completed.json").read_text("utf-8"))
FAILED: dict[str, Any] = json.loads((EXAMPLES / "scoring-failed.json").read_text("utf-8"))
BROKERS = {"SCORING_KAFKA_BOOTSTRAP_SERVERS": "one:9092, [::1]:9093", "SCORING_KAFKA_GROUP": "g"}


@pytest.mark.parametrize(
    ("event", "chain"),
    [
        pytest.param(COMPLETED, "kubernetes", id="completed"),
        pytest.param(FAILED | {"chain_id": None}, "", id="no-chain"),
        pytest.param(COMPLETED | {"type": "scoring.started"}, None, id="start"),
        pytest.param(COMPLETED | {"type": "of-a-later-version"}, None, id="unknown-type"),
        pytest.param(COMPLETED | {"purpose": "anchor"}, None, id="anchor"),
    ],
)
def test_ends_of_production_scores_are_read(event: dict[str, Any], chain: str | None) -> None:
    assert read_ended_chain(json.dumps(event).encode()) == chain


def test_anything_but_a_scoring_event_is_refused() -> None:
    broken = [
        *(None, b"", b"{", b"[]", b"7", b"\xff", b"[" * 10_000, b'{"type": "scoring.completed"}'),
        json.dumps(COMPLETED | {"chain_id": 7}).encode(),
    ]
    for value in broken:
        with pytest.raises(ValueError, match="not a scoring event"):
            read_ended_chain(value)


@table
def test_windows_end_at_the_next_hop(now: str, ends: str) -> None:
    hour, day = windows_at(datetime.fromisoformat(f"2026-03-02T{now}Z"))

    assert f"{hour.end:%H:%M} {day.end:%H:%M}" == ends
    assert (hour.end - hour.start, day.end - day.start) == (timedelta(hours=1), timedelta(hours=24))


def test_faust_is_set_up_like_our_other_clients(tmp_path: Path) -> None:
    app = faust_app(load_settings(BROKERS), tmp_path)
    assert app.conf.id == "g-insights"
    assert [str(url) for url in app.conf.broker] == ["kafka://one:9092", "kafka://[::1]:9093"]
    assert credentials(load_settings(BROKERS)) is None

    ca_file = str(Authority(tmp_path, "ours").file)
    tls = BROKERS | {"SCORING_KAFKA_SECURITY_PROTOCOL": "SSL", "SCORING_KAFKA_CA_FILE": ca_file}
    assert credentials(load_settings(tls)).context is not None

    sasl = tls | {"SCORING_KAFKA_SECURITY_PROTOCOL": "SASL_SSL", "SCORING_KAFKA_SASL_MECHANISM": "SCRAM-SHA-512"}
    login = credentials(load_settings(sasl | {"SCORING_KAFKA_SASL_USERNAME": "u", "SCORING_KAFKA_SASL_PASSWORD": "p"}))
    assert isinstance(login, SASLCredentials)
    assert (login.username, login.password, str(login.mechanism.value)) == ("u", "p", "SCRAM-SHA-512")

    token = tmp_path / "token"
    token.write_text("t")
    oauth = sasl | {"SCORING_KAFKA_SASL_MECHANISM": "OAUTHBEARER", "SCORING_KAFKA_OAUTH_TOKEN_FILE": str(token)}
    assert isinstance(credentials(load_settings(oauth)), OAuthCredentials)


def test_without_faust_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faust", None)
    for name, value in (BROKERS | {"SCORING_DATABASE_URL": "postgresql://localhost/none"}).items():
        monkeypatch.setenv(name, value)

    failed = CliRunner().invoke(insights, [])

    assert isinstance(failed.exception, ConfigurationError)
    assert "pip install 'tarsy-scoring[insights]'" in str(failed.exception)
