"""How rolling signals read the end of a score from an event, cut windows, and set up Faust."""

import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import cast

import pytest
from click.testing import CliRunner
from faust.auth import OAuthCredentials, SASLCredentials

from secured_kafka import Authority
from tables import table
from tarsy_scoring.commands.insights import insights
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.signals.consumer import credentials, faust_app
from tarsy_scoring.signals.figures import windows_at
from tarsy_scoring.signals.publisher import RollingSignals
from tarsy_scoring.telemetry.metrics import Metrics

BROKERS = {"SCORING_KAFKA_BOOTSTRAP_SERVERS": "one:9092, [::1]:9093", "SCORING_KAFKA_GROUP": "g"}


@table
def test_ends_of_production_scores_are_noted(value: str, result: str | None) -> None:
    metrics = Metrics()
    signals = RollingSignals(Settings(), cast(Database, None), metrics)

    signals.take_event(value.encode())

    counts = {label: metrics.insights_events.labels(label)._value.get() for label in ("counted", "unreadable")}
    assert counts == {label: float(label == result) for label in counts}


@table
def test_windows_end_at_the_next_hop(now: str, ends: str) -> None:
    windows = windows_at(datetime.fromisoformat(f"2026-03-02T{now}Z"))

    assert " ".join(f"{end:%H:%M}" for _, end in windows.values()) == ends
    assert [end - start for start, end in windows.values()] == [timedelta(hours=1), timedelta(hours=24)]


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
