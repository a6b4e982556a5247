"""Settings: defaults, inheritance, and errors that name the place and the reason but never the value."""

import itertools
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tarsy_scoring.config.chains import CompositeWeights
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.config.secrets import read_api_key
from tarsy_scoring.config.settings import TOPICS, Settings, variable_of
from tarsy_scoring.config.yaml_file import read_yaml
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.web.edge.tokens import TokensFile

REFUSED: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "refused_settings.yaml").read_text("utf-8"))


def load(tmp_path: Path, text: str = "", **environ: str) -> Settings:
    """Settings from a YAML text and variables."""
    if text:
        file = tmp_path / "config.yaml"
        file.write_text(text, encoding="utf-8")
        environ["SCORING_CONFIG"] = str(file)
    return load_settings(environ)


def refusal(tmp_path: Path, text: str = "", **environ: str) -> str:
    """The message with which these settings are refused."""
    with pytest.raises(ConfigurationError) as refused:
        load(tmp_path, text, **environ)
    return str(refused.value)


def test_an_empty_environment_gives_the_documented_defaults(tmp_path: Path) -> None:
    """Compose files and charts leave variables empty, which counts as not set."""
    settings = load(tmp_path, SCORING_SLOTS="", SCORING_TIMELINE_SOURCE="")

    assert (settings.slots, settings.lease_s, settings.max_attempts) == (16, 60, 5)
    assert settings.kafka_group == "tarsy-scoring"
    assert settings.config.defaults.providers == ("default",)
    assert settings.config.defaults.auto_score_statuses == ("completed",)
    assert settings.config.max_event_age_s == 86_400


# --- refusals ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", REFUSED["yaml"])
def test_a_wrong_yaml_is_refused_with_the_path_and_the_reason(tmp_path: Path, case: str) -> None:
    text, says = REFUSED["yaml"][case]
    message = refusal(tmp_path, text)

    assert says in message
    assert "config.yaml" in message


def test_a_wrong_variable_is_named_without_its_value(tmp_path: Path) -> None:
    for variable, value in REFUSED["variables"]:
        message = refusal(tmp_path, **{variable: value})

        assert variable in message
        assert not value.strip() or value not in message.replace(variable, "")


def test_an_incomplete_login_at_kafka_is_refused(tmp_path: Path) -> None:
    for changes, says in REFUSED["kafka logins"]:
        assert says in refusal(tmp_path, **{f"SCORING_KAFKA_{name}": value for name, value in changes.items()})


def test_a_judge_url_that_cannot_work_is_refused(tmp_path: Path) -> None:
    """The message quotes no part of the URL, which may hold a key."""
    for url in REFUSED["judge URLs"]:
        message = refusal(tmp_path, OPENAI_BASE_URL=url)

        assert "providers.default.base_url: expected https:" in message, url
        assert "hun" not in message


def test_topic_names_follow_the_rule_of_kafka(tmp_path: Path) -> None:
    for field, name in itertools.product(TOPICS, ["a b", "a/b", "t\u00ebst", "a\n", ".", "..", "x" * 250]):
        assert f"{variable_of(field)}: String should" in refusal(tmp_path, **{variable_of(field): name})
    for name in ("a", "A_b-c.9", "x" * 249):
        assert load(tmp_path, SCORING_TOPIC_SCORING_EVENTS=name).topic_scoring_events == name


def test_topics_with_the_same_name_are_refused(tmp_path: Path) -> None:
    """Else an unreadable message would be dead-lettered into the topic that it was read from."""
    for one, other in itertools.combinations(TOPICS, 2):
        message = refusal(tmp_path, **{variable_of(one): "mine", variable_of(other): "mine"})

        assert {variable_of(one), variable_of(other)} <= set(re.findall("SCORING_[A-Z_]+", message))


def test_a_secret_from_both_variable_and_file_is_refused(tmp_path: Path) -> None:
    assert "both set" in refusal(tmp_path, SCORING_DATABASE_URL="a", SCORING_DATABASE_URL_FILE="b")


# --- what is accepted ----------------------------------------------------------------------------------


def test_a_token_needs_neither_user_nor_password(tmp_path: Path) -> None:
    login = {"SCORING_KAFKA_SASL_MECHANISM": "OAUTHBEARER", "SCORING_KAFKA_OAUTH_TOKEN_FILE": "/run/token"}

    assert load(tmp_path, SCORING_KAFKA_SECURITY_PROTOCOL="SASL_SSL", **login).kafka_sasl_username is None


def test_brokers_and_judges_may_be_written_in_several_ways(tmp_path: Path) -> None:
    for brokers in ("kafka", "a:1,b:65535", "[::1]:9092, [fe80::1]"):
        assert load(tmp_path, SCORING_KAFKA_BOOTSTRAP_SERVERS=brokers).require_kafka() == brokers
    for url in ("HTTPS://judge.example", "http://[::1]:8000/v1", "http://127.0.0.1:1/a/b%20c"):
        assert load(tmp_path, OPENAI_BASE_URL=url + "/").config.providers["default"].base_url == url


def test_a_chain_overrides_the_defaults_and_inherits_the_rest(tmp_path: Path) -> None:
    """Lists and maps of a chain replace those of the defaults."""
    text = """
        defaults: {sample_rate: 0.5, gates: [{type: max_tool_calls, max: 5}], composite: {gate_weight: 1}}
        chains:
          k: {gates: [{type: file_exists, path: a}, {type: tool_called, tool: x}], composite: {judge_weight: 3}}
          without: {gates: [], composite: null}
          same: {}
    """
    settings = load(tmp_path, text)
    k, without, same, defaults = map(settings.chain, ("k", "without", "same", "other"))

    assert ([g.title for g in k.gates], k.sample_rate) == (["file_exists a", "tool_called x"], 0.5)
    assert k.composite == CompositeWeights(judge_weight=3)
    assert (without.gates, without.composite) == ((), None)
    assert (same.gates, same.composite) == (defaults.gates, CompositeWeights(gate_weight=1))
    assert defaults == settings.chain(None) == settings.config.defaults


def test_deep_nesting_is_an_error_with_a_reason(tmp_path: Path) -> None:
    file = tmp_path / "nested.yaml"
    file.write_text("[" * 2_000 + "]" * 2_000)
    for read in (partial(read_yaml, environ={}), TokensFile):
        with pytest.raises(ConfigurationError, match=r"nested\.yaml.*(recursion|neither YAML)"):
            read(file)


def test_variables_fill_the_yaml(tmp_path: Path) -> None:
    """`${VAR:-default}` becomes the variable or else the default, anywhere in a string."""
    text = "providers: {a: {base_url: 'https://${HOST:-judge}.example/v1', model: '${MODEL}', timeout_s: '${T:-5}'}}"

    provider = load(tmp_path, text, MODEL="m-1").config.providers["a"]

    assert (provider.base_url, provider.model, provider.timeout_s) == ("https://judge.example/v1", "m-1", 5)


def test_secrets_come_from_files_too_and_never_show(tmp_path: Path) -> None:
    """Every secret may come from `*_FILE`, and no representation of the settings holds one."""
    (tmp_path / "url").write_text("postgresql://me:hunter2@db/x\n", encoding="utf-8")

    settings = load(tmp_path, SCORING_DATABASE_URL_FILE=str(tmp_path / "url"))

    assert settings.require_database() == "postgresql://me:hunter2@db/x"
    assert "hunter2" not in repr(settings) + str(settings.model_dump())


def test_missing_api_key_is_named_with_its_remedy(tmp_path: Path) -> None:
    settings = load(tmp_path, "providers: {main: {api_key_env: JUDGE_KEY}, local: {api_key_env: null}}")

    with pytest.raises(ConfigurationError, match=r"JUDGE_KEY is not set.*api_key_env: null"):
        read_api_key(settings, "main", {})
    assert read_api_key(settings, "main", {"JUDGE_KEY": "k"}) == "k"
    assert read_api_key(settings, "local", {}) is None
