"""`check-config` shows every effective setting and no secret."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from tarsy_scoring.commands.check_config import check_config
from tarsy_scoring.commands.migrate import migrate
from tarsy_scoring.commands.worker import worker
from tarsy_scoring.errors import ConfigurationError

PLANTED = "planted7Secret"
Run = Callable[..., Result]

# Every setting that can hold a secret, each with one of its own.
_PLANTED = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
ENVIRONMENT, CONFIG = _PLANTED["environment"], _PLANTED["config"]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command with these variables and this file, on a terminal wide enough for every value."""

    def call(*arguments: str, command: Any = check_config, config: Any = CONFIG, **changes: str) -> Result:
        file = tmp_path / "scoring.yaml"
        file.write_text(json.dumps(config), encoding="utf-8")
        with monkeypatch.context() as environment:
            for name, value in (ENVIRONMENT | {"SCORING_CONFIG": str(file), "COLUMNS": "500"} | changes).items():
                environment.setenv(name, value)
            return CliRunner().invoke(command, arguments)

    return call


def test_no_secret_is_printed(run: Run) -> None:
    for arguments in ((), ("--all",), ("--json",)):
        shown = run(*arguments)
        assert shown.exit_code == 0, shown.output
        assert PLANTED not in shown.stdout + shown.stderr
        for user in ("bob", "dave", "erin", "frank", "gina"):
            assert user not in shown.stdout


def test_a_judge_without_tls_is_warned_of_beyond_this_machine(run: Run) -> None:
    def providers(url: str) -> dict[str, Any]:
        return {"providers": {"main": {"base_url": url, "api_key_env": "JUDGE_KEY"}}}

    for url in ("http://127.0.0.1:8000/v1", "https://judge.internal/v1"):
        assert "settings.judge_in_clear" not in run(config=providers(url)).stdout
    shown = run(config=providers("http://judge.internal/v1"))
    assert "settings.judge_in_clear: provider main, advice use https\n" in shown.stdout
    assert shown.stderr == ""


def test_everything_else_is_printed(run: Run) -> None:
    """Header names, hosts and paths are printed, and of each secret that it is set."""
    shown = json.loads(run("--json").stdout)

    main, spare = shown["config"]["providers"]["main"], shown["config"]["providers"]["spare"]
    assert main["base_url"] == "https://judge.internal/v1"
    assert main["extra_headers"] == {"X-Api-Key": "***", "Authorization": "***"}
    assert main["proxy"] == spare["proxy"] == "***"
    assert spare["base_url"] == "https://api.openai.com/v1"
    assert main["api_key_env"] == "JUDGE_KEY"
    environment = shown["environment"]
    assert environment["SCORING_TIMELINE_API_URL"] == "https://tarsy.internal/api"
    assert environment["SCORING_DATABASE_URL"] == "(set)"
    assert environment["SCORING_KAFKA_BOOTSTRAP_SERVERS"] == "broker.internal:9092"
    assert shown["config"]["chains"]["k"]["gates"][1]["command"] == "curl https://***@files.internal/a"
    assert shown["criteria"]["investigation-methodology"].isalnum()


def file_keys(text: str) -> Any:
    """The keys of the file that the command printed for people."""
    shown = text.partition("\nkeys of ")[2].partition(":\n")[2]
    return yaml.safe_load(shown.partition("\nwarnings (")[0].partition("\nthe configuration")[0])


def test_what_differs_from_the_defaults_is_shown_and_all_on_request(run: Run) -> None:
    """A provider or chain without keys of its own is named; a chain is compared with `defaults`."""
    config = CONFIG | {
        "defaults": {"criteria": "investigation", "sample_rate": 0.5, "pass_threshold": 50},
        "chains": {
            "k": {"sample_rate": 0.5, "max_reminders": 1},
            "plain": None,
            "usual": {"sample_rate": 1.0, "pass_threshold": None},
        },
    }
    brief, whole = (
        run(*options, config=config, SCORING_SLOTS="16", SCORING_LEASE_S="61") for options in ((), ("--all",))
    )

    shown = file_keys(brief.stdout)
    assert shown["chains"] == {
        "k": {"max_reminders": 1},
        "plain": {},
        "usual": {"sample_rate": 1.0, "pass_threshold": None},
    }
    assert shown["defaults"] == {"sample_rate": 0.5, "pass_threshold": 50.0}
    assert shown["providers"]["spare"] == {"api_key_env": "JUDGE_KEY", "proxy": "***"}
    assert shown.keys() == {"providers", "defaults", "chains", "gates"}
    variables = brief.stdout.partition("variables that differ")[2].partition("\nkeys of ")[0]
    assert "SCORING_LEASE_S " in variables
    assert "SCORING_SLOTS" not in variables
    everything = json.loads(run("--json", config=config, SCORING_LEASE_S="61").stdout)
    assert file_keys(whole.stdout.replace("\ncriteria:", "\nthe configuration")) == everything["config"]
    assert all(f"  {variable} " in whole.stdout for variable in everything["environment"])


def test_a_file_is_checked_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without database, brokers, source, keys and secrets, which a worker needs: they are listed, and no error."""
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    nothing = CliRunner().invoke(check_config)
    (tmp_path / "mine.yaml").write_text(
        "chains: {k: {pass_threshold: 60}}\nnotifications: {team: {type: apprise, url_env: HOOK}}", encoding="utf-8"
    )
    monkeypatch.setenv("SCORING_CONFIG", str(tmp_path / "mine.yaml"))
    brief, document = CliRunner().invoke(check_config), json.loads(CliRunner().invoke(check_config, ["--json"]).stdout)

    assert (nothing.exit_code, nothing.stderr, brief.exit_code, brief.stderr) == (0, "", 0, "")
    assert nothing.stdout.startswith(
        "variables that differ from the defaults: none\nno file: SCORING_CONFIG is not set\n"
    )
    assert f"keys of {tmp_path / 'mine.yaml'} that differ" in brief.stdout
    assert document["file"] == str(tmp_path / "mine.yaml")
    needed = ("SCORING_DATABASE_URL", "SCORING_KAFKA_BOOTSTRAP_SERVERS", "SCORING_TIMELINE_SOURCE", "OPENAI_API_KEY")
    for name, line in zip(needed, document["not_set"], strict=True):
        assert name in line
        assert f"\n  {line}\n" in brief.stdout
    with_worker = CliRunner().invoke(worker)
    assert str(with_worker.exception) == "\n".join(document["not_set"])


def test_everything_that_is_wrong_is_named_at_once(run: Run) -> None:
    """What is not set is no part of that."""
    unknown = {"chains": {"a": {"criteria": "investigaton"}, "b": {"criteria": "investigation-outcome"}}}
    wrong = {"SCORING_API_HOST": "0.0.0.0", "JUDGE_KEY": ""}
    shown = run(config=CONFIG | unknown, **wrong)

    lines = str(shown.exception).splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "chains.a.criteria",
        "chains.b.criteria",
        "the API would listen on 0.0.0.0, beyond this machine, without access control",
    ]
    assert "did you mean 'investigation'?" in lines[0]
    assert "they were removed, use 'investigation'" in lines[1]
    assert PLANTED not in str(shown.exception)


def test_an_unknown_variable_is_named_with_the_nearest_one(run: Run) -> None:
    """By `check-config` and at every start. A variable that holds the key of a provider has a meaning."""
    own_key = {"providers": {"main": {"api_key_env": "SCORING_KEY"}}}
    shown = run(config=own_key, SCORING_KEY="k", SCORING_LEASE_SECONDS="60", SCORING_ZZZ="1")

    assert shown.exit_code == 0, shown.output
    assert "did you mean SCORING_LEASE_S?" in shown.stdout
    assert shown.stdout.count("SCORING_ZZZ") == 1
    assert "SCORING_KEY" not in shown.stdout.replace("api_key_env: SCORING_KEY", "")
    document = json.loads(run("--json", SCORING_ZZZ="1").stdout)
    assert document["unknown_variables"] == ["SCORING_ZZZ"]
    assert "settings.unknown_variable" in {warning["event"] for warning in document["warnings"]}


def test_a_variable_of_the_first_design_names_its_successor(run: Run) -> None:
    shown = run(SCORING_LLM_PROVIDER="openai", SCORING_LLM_MODEL="gpt-5").stdout
    assert "did you mean SCORING_JUDGE_MODEL?" in shown
    assert "did you mean OPENAI_BASE_URL, or providers in the file of SCORING_CONFIG?" in shown


# A variable, a value that can never work, and words of the refusal; test_settings.py has the others.
REFUSED = [
    ("SCORING_DATABASE_URL", "postgresql://bob:planted7Secret@db/scores?sslmode=nonsense", "sslmode"),
    ("SCORING_TIMELINE_DATABASE_URL", "postgresql://bob:planted7[Secret@db/scores", "%XX"),
    ("SCORING_KAFKA_CA_FILE", "/nowhere/ca.pem", "cannot use /nowhere/ca.pem"),
]


def test_unusable_settings_are_refused_at_the_start(run: Run) -> None:
    for command in (check_config, worker):
        for variable, value, says in REFUSED:
            shown = run(command=command, SCORING_KAFKA_SECURITY_PROTOCOL="SSL", **{variable: value})
            assert isinstance(shown.exception, ConfigurationError), value
            message = str(shown.exception)
            assert message.startswith(variable)
            assert says in message
            assert PLANTED not in message
            assert "bob" not in message
    variable, value, says = REFUSED[0]
    assert says in str(run(command=migrate, **{variable: value}).exception)


def test_an_unknown_role_is_refused(run: Run) -> None:
    for roles in ("", " ", ",", "intake,", "juge"):
        refused = run("--only", roles, command=worker, SCORING_TIMELINE_SOURCE="")  # or it would run if it were taken
        assert refused.exit_code == 2
        assert "no role is called" in refused.stderr
