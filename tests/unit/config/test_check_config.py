"""`check-config` shows every effective setting and no secret."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tarsy_scoring.commands.check_config import check_config
from tarsy_scoring.commands.migrate import migrate
from tarsy_scoring.commands.worker import worker
from tarsy_scoring.errors import ConfigurationError

PLANTED = "planted7Secret"
Run = Callable[..., Result]

# Every setting that can hold a secret, each with one of its own.
ENVIRONMENT = {
    "SCORING_DATABASE_URL": "postgresql://bob:planted7Secret-1@db.internal:5432/scores",
    "SCORING_TIMELINE_DATABASE_URL": "postgresql://bob:planted7Secret-2@tarsy.internal/tarsy",
    "SCORING_KAFKA_BOOTSTRAP_SERVERS": "broker.internal:9092",
    "SCORING_KAFKA_SASL_USERNAME": "carol",
    "SCORING_KAFKA_SASL_PASSWORD": "planted7Secret-3",
    "SCORING_KAFKA_CERT_FILE": "/run/tls/client.crt",
    "SCORING_KAFKA_KEY_FILE": "/run/tls/client.key",
    "SCORING_KAFKA_KEY_PASSWORD": "planted7Secret-18",
    "SCORING_TIMELINE_SOURCE": "tarsy-db",
    "SCORING_TIMELINE_API_URL": "https://tarsy.internal/api",
    "SCORING_TIMELINE_API_TOKEN": "planted7Secret-6",
    "JUDGE_KEY": "planted7Secret-7",
}
CONFIG: dict[str, Any] = {
    "providers": {
        "main": {
            "base_url": "https://judge.internal/v1",
            "api_key_env": "JUDGE_KEY",
            "extra_headers": {"X-Api-Key": "planted7Secret-10", "Authorization": "Bearer planted7Secret-11"},
            "proxy": "http://erin:planted7Secret/8@proxy.internal:3128/?code=planted7Secret-9&v=2",
        },
        "spare": {"api_key_env": "JUDGE_KEY", "proxy": "frank:planted7Secret-13@proxy.internal:3128"},
    },
    "gates": {"allow_commands": True, "work_dir": "/srv/sessions"},
    "chains": {
        "k": {
            "gates": [
                {"type": "command_succeeds", "command": "curl -H 'Authorization: Bearer planted7Secret-14' http://x"},
                {"type": "command_succeeds", "command": "curl https://gina:planted7Secret-15@files.internal/a"},
                {
                    "type": "script",
                    "description": "checks",
                    "command": "check --password planted7Secret-16 --url ftp://h:planted7Secret-17@f/",
                },
            ]
        }
    },
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command with these variables and this file, on a terminal wide enough for every value."""

    def call(*arguments: str, command: Any = check_config, config: Any = CONFIG, **changes: str) -> Result:
        file = tmp_path / "scoring.yaml"
        file.write_text(json.dumps(config), encoding="utf-8")
        for name, value in (ENVIRONMENT | {"SCORING_CONFIG": str(file), "COLUMNS": "500"} | changes).items():
            monkeypatch.setenv(name, value)
        return CliRunner().invoke(command, arguments)

    return call


@pytest.mark.parametrize("arguments", [(), ("--json",)], ids=["people", "programs"])
def test_no_secret_is_printed(run: Run, arguments: tuple[str, ...]) -> None:
    shown = run(*arguments)

    assert shown.exit_code == 0, shown.output
    assert PLANTED not in shown.stdout + shown.stderr
    for user in ("bob", "dave", "erin", "frank", "gina"):
        assert user not in shown.stdout


def test_everything_else_is_printed(run: Run) -> None:
    """Names of headers, hosts, ports and paths, and whether a secret is set."""
    shown = json.loads(run("--json").stdout)

    main, spare = shown["config"]["providers"]["main"], shown["config"]["providers"]["spare"]
    assert main["base_url"] == "https://judge.internal/v1"
    assert main["extra_headers"] == {"X-Api-Key": "***", "Authorization": "***"}
    assert main["proxy"] == "http://***@proxy.internal:3128/?code=***&v=***"
    assert (spare["proxy"], spare["base_url"]) == ("***@proxy.internal:3128", "https://api.openai.com/v1")
    assert main["api_key_env"] == "JUDGE_KEY"
    environment = shown["environment"]
    assert environment["SCORING_TIMELINE_API_URL"] == "https://tarsy.internal/api"
    assert environment["SCORING_DATABASE_URL"] == "(set)"
    assert environment["SCORING_KAFKA_BOOTSTRAP_SERVERS"] == "broker.internal:9092"
    assert shown["config"]["chains"]["k"]["gates"][1]["command"] == "curl https://***@files.internal/a"
    assert shown["criteria"]["investigation-methodology"].isalnum()


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("https://proxy.internal:8443/v1", "https://proxy.internal:8443/v1"),
        ("https://key@judge.internal/v1", "https://***@judge.internal/v1"),
        ("https://a:b@c@judge.internal/v1", "https://***@judge.internal/v1"),
        ("https:key:planted@judge.internal/v1", "https:***@judge.internal/v1"),
        (r"https:\\key:planted@judge.internal/v1", r"https:\\***@judge.internal/v1"),
        ("https://judge.internal/v1#planted", "https://judge.internal/v1#***"),
        ("https://judge.internal/v1?planted", "https://judge.internal/v1?***"),
    ],
)
def test_every_spelling_of_a_url_loses_its_secrets(run: Run, url: str, masked: str) -> None:
    shown = run("--json", config={"providers": {"main": {"api_key_env": None, "proxy": url}}})

    assert json.loads(shown.stdout)["config"]["providers"]["main"]["proxy"] == masked


@pytest.mark.parametrize("variable", ["SCORING_DATABASE_URL", "SCORING_TIMELINE_DATABASE_URL"])
@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql://bob:planted7Secret@db/scores?sslmode=nonsense", "sslmode"),
        ("postgresql://bob:planted7[Secret@db/scores", "%XX"),
        ("postgresql://bob:planted7Secret@db:70000/scores", "70000"),
    ],
    ids=["sslmode", "bracket-in-the-password", "port"],
)
@pytest.mark.parametrize("command", [check_config, worker], ids=["check-config", "worker"])
def test_a_database_url_that_can_never_work_is_refused(
    run: Run, variable: str, url: str, says: str, command: Any
) -> None:
    """Before anything waits for that database."""
    shown = run(command=command, **{variable: url})

    assert isinstance(shown.exception, ConfigurationError)
    message = str(shown.exception)
    assert message.startswith(variable)
    assert says in message
    assert PLANTED not in message
    assert "bob" not in message


def test_migrate_refuses_such_a_url_too(run: Run) -> None:
    shown = run(command=migrate, SCORING_DATABASE_URL="postgresql://bob:planted7Secret@db/scores?sslmode=nonsense")

    assert isinstance(shown.exception, ConfigurationError)
    assert "sslmode" in str(shown.exception)


@pytest.mark.parametrize("command", [check_config, worker], ids=["check-config", "worker"])
def test_a_certificate_that_is_not_there_is_refused(run: Run, command: Any) -> None:
    shown = run(command=command, SCORING_KAFKA_SECURITY_PROTOCOL="SSL", SCORING_KAFKA_CA_FILE="/nowhere/ca.pem")

    assert isinstance(shown.exception, ConfigurationError)
    assert str(shown.exception) == "SCORING_KAFKA_CA_FILE: cannot read /nowhere/ca.pem: No such file or directory"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"SCORING_API_HOST": "0.0.0.0"}, "SCORING_API_OPEN=true", id="open by accident"),
        pytest.param({"SCORING_TRUSTED_PROXIES": "10.0.0.300"}, "SCORING_TRUSTED_PROXIES", id="no network"),
        pytest.param({"SCORING_API_TOKENS_FILE": "/nowhere/tokens.yaml"}, "SCORING_API_TOKENS_FILE", id="no file"),
        pytest.param({"SCORING_API_TOKENS_FILE": "/dev/null"}, "expected a list", id="no tokens"),
    ],
)
def test_what_the_api_would_refuse_is_refused(run: Run, changes: dict[str, str], words: str) -> None:
    """Access is checked as at the start of `api`."""
    refused = run(**changes)

    assert isinstance(refused.exception, ConfigurationError)
    assert words in str(refused.exception)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"SCORING_TOPIC_DEAD_LETTERS": "session-completed"}, "give each its own", id="one topic for two"),
        pytest.param({"SCORING_TOPIC_DEAD_LETTERS": "a b"}, "not a topic name", id="no topic"),
        pytest.param({"SCORING_KAFKA_BOOTSTRAP_SERVERS": "broker:99999"}, "from 1 to 65535", id="no port"),
        pytest.param({"SCORING_KAFKA_GROUP": " "}, "must not be blank", id="no group"),
    ],
)
@pytest.mark.parametrize("command", [check_config, worker], ids=["check-config", "worker"])
def test_a_kafka_that_cannot_be_meant_is_refused(run: Run, changes: dict[str, str], words: str, command: Any) -> None:
    refused = run(command=command, **changes)

    assert isinstance(refused.exception, ConfigurationError)
    assert words in str(refused.exception)
    assert str(refused.exception).startswith(next(iter(changes)))


@pytest.mark.parametrize("roles", ["", " ", ",", "intake,", "juge"])
def test_an_unknown_role_is_refused(run: Run, roles: str) -> None:
    """Also an empty one, as an unset variable leaves it."""
    refused = run("--only", roles, command=worker, SCORING_TIMELINE_SOURCE="")  # or it would run if it were taken

    assert refused.exit_code == 2
    assert "no role is called" in refused.stderr


def test_an_open_api_on_purpose_is_fine(run: Run) -> None:
    assert run(SCORING_API_HOST="0.0.0.0", SCORING_API_OPEN="true").exit_code == 0
