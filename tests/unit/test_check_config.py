"""`check-config`: shows all that is in force and nothing that is secret, whatever holds it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tarsy_scoring.commands.service import check_config, migrate, worker
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
    "SCORING_TIMELINE_SOURCE": "tarsy-db",
    "SCORING_TIMELINE_API_URL": "https://dave:planted7Secret-4@tarsy.internal/api?key=planted7Secret-5",
    "SCORING_TIMELINE_API_TOKEN": "planted7Secret-6",
    "JUDGE_KEY": "planted7Secret-7",
}
CONFIG: dict[str, Any] = {
    "providers": {
        "main": {
            "base_url": "https://erin:planted7Secret-8@judge.internal/v1?code=planted7Secret-9&v=2",
            "api_key_env": "JUDGE_KEY",
            "extra_headers": {"X-Api-Key": "planted7Secret-10", "Authorization": "Bearer planted7Secret-11"},
            "proxy": "http://frank:planted7Secret/12@proxy.internal:3128",
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
    """Neither passwords nor headers nor what a URL carries, wherever it was planted."""
    told = run(*arguments)

    assert told.exit_code == 0, told.output
    assert PLANTED not in told.stdout + told.stderr
    for user in ("bob", "dave", "erin", "frank", "gina"):
        assert user not in told.stdout


def test_what_is_no_secret_is_printed(run: Run) -> None:
    """Names of headers, hosts, ports and paths; that a secret is set, and that another is not."""
    told = json.loads(run("--json").stdout)

    main, spare = told["config"]["providers"]["main"], told["config"]["providers"]["spare"]
    assert main["base_url"] == "https://***@judge.internal/v1?code=***&v=***"
    assert main["extra_headers"] == {"X-Api-Key": "***", "Authorization": "***"}
    assert main["proxy"] == "http://***@proxy.internal:3128"
    assert (spare["proxy"], spare["base_url"]) == ("***@proxy.internal:3128", "https://api.openai.com/v1")
    assert main["api_key_env"] == "JUDGE_KEY"
    environment = told["environment"]
    assert environment["SCORING_TIMELINE_API_URL"] == "https://***@tarsy.internal/api?key=***"
    assert environment["SCORING_DATABASE_URL"] == "(set)"
    assert environment["SCORING_KAFKA_BOOTSTRAP_SERVERS"] == "broker.internal:9092"
    assert told["config"]["chains"]["k"]["gates"][1]["command"] == "curl https://***@files.internal/a"
    assert told["criteria"]["investigation-methodology"].isalnum()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://judge.internal:8443/v1", "https://judge.internal:8443/v1"),
        ("https://key@judge.internal/v1", "https://***@judge.internal/v1"),
        ("https://a:b@c@judge.internal/v1", "https://***@judge.internal/v1"),
        ("https:key:planted@judge.internal/v1", "https:***@judge.internal/v1"),
        (r"https:\\key:planted@judge.internal/v1", r"https:\\***@judge.internal/v1"),
        ("https://judge.internal/v1#planted", "https://judge.internal/v1#***"),
        ("https://judge.internal/v1?planted", "https://judge.internal/v1?***"),
    ],
)
def test_every_spelling_of_a_url_loses_its_secrets(run: Run, url: str, shown: str) -> None:
    """As far as the setting takes it for a URL."""
    told = run("--json", config={"providers": {"main": {"api_key_env": None, "base_url": url}}})

    assert json.loads(told.stdout)["config"]["providers"]["main"]["base_url"] == shown


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
    """With the variable and what is wrong, and before anything waits for that database."""
    told = run(command=command, **{variable: url})

    assert isinstance(told.exception, ConfigurationError)
    message = str(told.exception)
    assert message.startswith(variable)
    assert says in message
    assert PLANTED not in message
    assert "bob" not in message


def test_migrate_refuses_such_a_url_too(run: Run) -> None:
    """Asked wrongly, status 2, and not a database that refuses."""
    told = run(command=migrate, SCORING_DATABASE_URL="postgresql://bob:planted7Secret@db/scores?sslmode=nonsense")

    assert isinstance(told.exception, ConfigurationError)
    assert "sslmode" in str(told.exception)
