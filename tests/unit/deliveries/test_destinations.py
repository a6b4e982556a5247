"""Destinations: what is refused at the start, and what their messages say."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tarsy_scoring.config.chains import Config
from tarsy_scoring.config.destinations import DestinationSettings
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.config.secret_files import secret_files
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.deliveries.destinations import open_destinations
from tarsy_scoring.deliveries.messages import slack_message, webhook_message
from tarsy_scoring.deliveries.notices import Notice, is_notified_of
from tarsy_scoring.errors import ConfigurationError

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
WEBHOOK = {"type": "webhook", "url_env": "HOOK", "secret_env": "HOOK_SECRET"}
GIVEN = {"HOOK": "https://hooks.example/T0KEN", "HOOK_SECRET": "a-key-of-signatures"}
DRIFT = {"cause": "agents", "is_clear": False, "size_points": -6.25, "criteria": "c", "criteria_hash": "h"}
BUDGET = {"day": "2026-03-01", "limit_usd": 12.5}


def settings_with(**destination: Any) -> Settings:
    return Settings(config=Config(destinations={"oncall": DestinationSettings(**WEBHOOK | destination)}))


def notice(kind: Any, details: Mapping[str, Any], chain_id: str | None = "kubernetes") -> Notice:
    return Notice("e-1", kind, AT, chain_id, details, {})


@pytest.mark.parametrize(
    ("environ", "reason"),
    [
        ({"HOOK": ""}, "the variable HOOK is not set"),
        ({"HOOK_SECRET": ""}, "the variable HOOK_SECRET is not set"),
        ({"HOOK_SECRET": "T0KEN"}, "its secret is shorter than 16 characters"),
        ({"HOOK": "ftp://T0KEN"}, "its address is no https://host/path"),
        ({"HOOK": "https://"}, "its address is no https://host/path"),
        ({"HOOK": "https://user:T0KEN@host"}, "its address is no https://host/path"),
        ({"HOOK": "https://host/T0KEN\n"}, "its address is no https://host/path"),
        ({"HOOK": "https://host:T0KEN/"}, "its address is no https://host/path"),
    ],
)
def test_an_address_or_secret_that_cannot_work_is_refused(environ: dict[str, str], reason: str) -> None:
    """The message names the destination and quotes nothing."""
    with pytest.raises(ConfigurationError, match=reason) as refused:
        open_destinations(settings_with(), GIVEN | environ)
    assert str(refused.value).startswith("destinations.oncall")
    assert "T0KEN" not in str(refused.value)


def test_every_fault_of_a_destination_is_named(tmp_path: Path) -> None:
    """Those of its keys, which depend on its type, beside those of its values."""
    file = tmp_path / "config.yaml"
    file.write_text(
        "destinations:\n  a: {type: webhook, base_url: nowhere, score_below: 200, ulr_env: A}\n"
        "  b: {type: langfuse, events: [drift], secret_env: A, secret_file: /a}\n"
    )
    with pytest.raises(ConfigurationError) as refused:
        load_settings({"SCORING_CONFIG": str(file)})
    assert [line.removeprefix(f"{file}: destinations.") for line in str(refused.value).splitlines()] == [
        "a.base_url: expected https://host:port, without user, password or query in it",
        "a.score_below: Input should be less than or equal to 100",
        "a.ulr_env: no such key; did you mean 'url_env'?",
        "a: a destination of the type webhook has no key base_url",
        "a: a destination of the type webhook needs either url_env or url_file",
        "a: a destination of the type webhook needs either secret_env or secret_file",
        "b: a destination of the type langfuse has no key events",
        "b: a destination of the type langfuse needs base_url",
        "b: a destination of the type langfuse needs public_key",
        "b: a destination of the type langfuse needs either secret_env or secret_file",
    ]


def test_an_address_of_slack_needs_tls() -> None:
    """It is the only secret of a channel."""
    slack = Settings(config=Config(destinations={"team": DestinationSettings(type="slack", url_env="HOOK")}))
    with pytest.raises(ConfigurationError, match="no https://host/path"):
        open_destinations(slack, {"HOOK": "http://hooks.example/T0KEN"})


def test_a_secret_in_a_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "hook"
    file.write_text("https://hooks.example/one\n")
    [destination] = open_destinations(settings_with(url_env=None, url_file=file), GIVEN)
    assert destination.sender.address() == "https://hooks.example/one"
    file.write_text("https://hooks.example/another\n")
    assert destination.sender.address() == "https://hooks.example/another"


def test_variables_and_files_of_destinations_are_known(tmp_path: Path) -> None:
    """They cause no warning, and commands of gates must not read the files."""
    file = tmp_path / "config.yaml"
    file.write_text("destinations: {a: {type: webhook, url_file: /run/hook, secret_env: SCORING_HOOK_SECRET}}")
    environ = {"SCORING_CONFIG": str(file), "SCORING_HOOK_SECRET_FILE": "/run/key", "SCORING_HOOK_SECRETS": "x"}
    settings = load_settings(environ)
    assert settings.unknown_variables == ("SCORING_HOOK_SECRETS",)
    found = dict(secret_files(settings, environ))
    assert found["destinations.a.url_file"] == Path("/run/hook")
    assert found["SCORING_HOOK_SECRET_FILE"] == Path("/run/key")


def test_neither_address_nor_secret_stand_in_a_representation() -> None:
    [destination] = open_destinations(settings_with(), GIVEN)
    message = webhook_message(notice("test", {}), destination.settings, GIVEN["HOOK_SECRET"], 1, None)
    assert not [
        secret for secret in ("T0KEN", "a-key-of") if secret in f"{destination} {message} {destination.settings}"
    ]


@pytest.mark.parametrize(
    ("kind", "details", "chain_id", "line"),
    [
        (
            "drift",
            DRIFT,
            "kubernetes",
            "<https://s.example/drift|Drift> in chain kubernetes: totals changed by -6.2 points, because the agents "
            "changed (likely, not yet clear)",
        ),
        (
            "budget_spent",
            BUDGET,
            None,
            "The daily budget of all chains (12.5 USD) is spent for 2026-03-01: <https://s.example/|scores> wait for "
            "the next UTC day",
        ),
        (
            "budget_spent",
            BUDGET,
            "a<b",
            "The daily budget of chain a&lt;b (12.5 USD) is spent for 2026-03-01: <https://s.example/|scores> wait for "
            "the next UTC day",
        ),
        ("test", {}, None, "A test of tarsy-scoring: notifications reach this channel"),
    ],
)
def test_a_channel_reads_plain_sentences(kind: Any, details: Any, chain_id: str | None, line: str) -> None:
    message = slack_message([notice(kind, details, chain_id)], "https://s.example/")
    assert line in message.body.decode()


@pytest.mark.parametrize(("chain_id", "is_sent"), [("kubernetes", True), ("billing", False), (None, True)])
def test_a_budget_of_all_chains_concerns_each_of_them(chain_id: str | None, is_sent: bool) -> None:
    one_chain = DestinationSettings(**WEBHOOK | {"chains": ["kubernetes"]})
    assert is_notified_of(notice("budget_spent", BUDGET, chain_id), one_chain) is is_sent


def test_drift_without_a_chain_of_the_destination_is_not_sent() -> None:
    one_chain = DestinationSettings(**WEBHOOK | {"chains": ["billing"]})
    assert not is_notified_of(notice("drift", DRIFT), one_chain)
