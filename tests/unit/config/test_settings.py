"""Settings: what is asked wrongly is said with its path, its reason, and never with its value."""

import itertools
import re
from pathlib import Path

import pytest

from tarsy_scoring.config.load import load_settings, read_api_key
from tarsy_scoring.config.settings import TOPICS, CompositeWeights, Settings, variable_of
from tarsy_scoring.errors import ConfigurationError


def load(tmp_path: Path, yaml: str = "", **environ: str) -> Settings:
    """Settings from a YAML text and variables."""
    if yaml:
        file = tmp_path / "config.yaml"
        file.write_text(yaml, encoding="utf-8")
        environ["SCORING_CONFIG"] = str(file)
    return load_settings(environ)


def test_nothing_set_gives_the_documented_defaults(tmp_path: Path) -> None:
    """An empty environment is a valid one; what is needed is asked for by who needs it."""
    settings = load(tmp_path)

    assert (settings.slots, settings.lease_s, settings.max_attempts, settings.kafka_group) == (
        16,
        60,
        5,
        "tarsy-scoring",
    )
    assert settings.config.defaults.providers == ("default",)
    assert settings.config.defaults.auto_score_statuses == ("completed",)
    assert settings.config.max_event_age_s == 86_400


def test_an_empty_variable_counts_as_not_set(tmp_path: Path) -> None:
    """Compose files and charts leave variables empty."""
    assert load(tmp_path, SCORING_SLOTS="", SCORING_TIMELINE_SOURCE="").slots == 16


@pytest.mark.parametrize(
    ("yaml", "says"),
    [
        pytest.param("providrs: {}", "providrs: no such key; did you mean 'providers'", id="key-at-the-top"),
        pytest.param("providers: {main: {base_ur: x}}", "providers.main.base_ur: no such key", id="key-of-a-provider"),
        pytest.param("chains: {k: {enabld: true}}", "chains.k.enabld: no such key; did you mean 'enabled'", id="chain"),
        pytest.param("defaults: {sample_rate: 1.5}", "defaults.sample_rate", id="share-over-one"),
        pytest.param("defaults: {max_reminders: many}", "defaults.max_reminders", id="wrong-type"),
        pytest.param("defaults: {auto_score_statuses: [done]}", "defaults.auto_score_statuses", id="unknown-status"),
        pytest.param("defaults: {providers: [mian]}", "no provider is called 'mian'", id="unknown-provider"),
        pytest.param("providers: {a: {base_url: nowhere}}", "providers.a.base_url", id="not-a-url"),
        pytest.param("- a\n- b", "expected a mapping", id="not-a-mapping"),
        pytest.param("a: [b", "line 1: not YAML", id="not-yaml"),
        pytest.param(
            "chains: {k: {gates: [{type: no_transcript_errors}, {type: file_matches, path: a, pattern: '('}]}}",
            "chains.k.gates.1.pattern: not a regular expression of RE2: missing )",
            id="pattern-of-a-gate",
        ),
        pytest.param(
            "defaults: {gates: [{type: tool_called, tol: x}]}",
            "defaults.gates.0.tol: no such key; did you mean 'tool'?",
            id="key-of-a-gate",
        ),
        pytest.param(
            "defaults: {gates: [{type: tool_caled, tool: x}]}",
            "defaults.gates.0.type: no such gate; did you mean 'tool_called'?",
            id="type-of-a-gate",
        ),
        pytest.param(
            "defaults: {gates: [{tool: x}]}",
            "defaults.gates.0.type: Field required (known: command_json_path, ",
            id="gate-without-a-type",
        ),
        pytest.param("defaults: {gates: [tool_called]}", "defaults.gates.0: Input should be", id="gate-is-no-map"),
        pytest.param(
            "defaults: {composite: {gate_wieght: 1}}",
            "defaults.composite.gate_wieght: no such key; did you mean 'gate_weight'?",
            id="key-of-the-composite",
        ),
        pytest.param("defaults: {composite: {gate_weight: 0}}", "composite: all weights are 0", id="no-weight"),
        pytest.param("defaults: {composite: {}}", "defaults.composite: all weights are 0", id="no-weight-at-all"),
        pytest.param("defaults: {composite: {judge_weight: -1}}", "composite.judge_weight", id="negative-weight"),
        pytest.param("defaults: {composite: {judge_weight: .inf}}", "composite.judge_weight", id="endless-weight"),
        pytest.param("defaults: {composite: {judge_weight: .nan}}", "composite.judge_weight", id="weight-is-no-number"),
        pytest.param("chains: {k: {judge: {enabld: no}}}", "did you mean 'enabled'?", id="key-of-a-judge"),
        pytest.param(
            "providers: {a: {prices_usd_per_million_tokens: {inputs: 1}}}", "did you mean 'input'?", id="key-of-prices"
        ),
        pytest.param("gates: {allow_command: true}", "did you mean 'allow_commands'?", id="key-of-all-gates"),
        pytest.param("chains: {k: {command_pattern: 'a('}}", "chains.k.command_pattern: not a regular", id="no-re2"),
        pytest.param("chains: {k: {command_pattern: '(?=x)'}}", "chains.k.command_pattern: not a", id="lookahead"),
        pytest.param("chains: {k: {command_pattern: 'x*'}}", "matches the empty text", id="pattern-of-nothing"),
        pytest.param("chains: {k: {command_pattern: ''}}", "matches the empty text", id="empty-pattern"),
        pytest.param("chains: {k: {shell_tools: [a, ' ']}}", "k.shell_tools.1: must not be blank", id="blank-tool"),
        pytest.param("gates: {work_dir: '/s/{session}'}", "gates.work_dir: may hold `{session_id}`", id="other-braces"),
        pytest.param("gates: {work_dir: '/s/{session_id}}'}", "gates.work_dir: may hold", id="brace-too-many"),
        pytest.param("gates: {work_dir: ' '}", "gates.work_dir: must not be blank", id="blank-directory"),
        pytest.param(
            "providers: {a: {model: '${NOT_SET}'}}", "providers.a.model: the variable NOT_SET", id="no-variable"
        ),
    ],
)
def test_a_wrong_yaml_says_where_and_why(tmp_path: Path, yaml: str, says: str) -> None:
    """The start is refused with the path and the reason."""
    with pytest.raises(ConfigurationError, match=r"config\.yaml") as refused:
        load(tmp_path, yaml)

    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        pytest.param("SCORING_SLOTS", "many", id="no-number"),
        pytest.param("SCORING_SLOTS", "0", id="too-small"),
        pytest.param("SCORING_TIMELINE_SOURCE", "elsewhere", id="unknown-source"),
        pytest.param("SCORING_DATABASE_SCHEMA", 'a"; DROP', id="schema-is-no-identifier"),
        pytest.param("SCORING_LOG_LEVEL", "loud", id="unknown-level"),
        pytest.param("SCORING_KAFKA_BOOTSTRAP_SERVERS", "there:9092,here:65536", id="no-port"),
        pytest.param("SCORING_KAFKA_BOOTSTRAP_SERVERS", "here:0", id="port-nobody-has"),
    ],
)
def test_a_wrong_variable_is_named_without_its_value(tmp_path: Path, variable: str, value: str) -> None:
    """Values may be secrets in the wrong place, so only the name and the reason are told."""
    with pytest.raises(ConfigurationError, match=variable) as refused:
        load(tmp_path, **{variable: value})

    assert value not in str(refused.value).replace(variable, "")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        pytest.param({"SECURITY_PROTOCOL": "TLS"}, "SCORING_KAFKA_SECURITY_PROTOCOL", id="unknown-protocol"),
        pytest.param({"SASL_MECHANISM": "GSSAPI"}, "SCORING_KAFKA_SASL_MECHANISM", id="unknown-mechanism"),
        pytest.param({"SECURITY_PROTOCOL": "SASL_SSL", "SASL_PASSWORD": "p"}, "SCORING_KAFKA_SASL_USERNAME", id="user"),
        pytest.param(
            {"SECURITY_PROTOCOL": "SASL_PLAINTEXT", "SASL_USERNAME": "u"}, "SCORING_KAFKA_SASL_PASSWORD", id="password"
        ),
        pytest.param(
            {
                "SECURITY_PROTOCOL": "SASL_SSL",
                "SASL_MECHANISM": "OAUTHBEARER",
                "SASL_USERNAME": "u",
                "SASL_PASSWORD": "p",
            },
            "OAUTHBEARER needs SCORING_KAFKA_OAUTH_TOKEN_FILE",
            id="no-token",
        ),
        pytest.param({"CERT_FILE": "c"}, "SCORING_KAFKA_KEY_FILE belong together", id="certificate-without-key"),
        pytest.param({"KEY_FILE": "k"}, "SCORING_KAFKA_CERT_FILE and", id="key-without-certificate"),
        pytest.param({"KEY_PASSWORD": "p"}, "SCORING_KAFKA_KEY_PASSWORD needs SCORING_KAFKA_KEY_FILE", id="no-key"),
    ],
)
def test_half_a_login_at_kafka_is_refused(tmp_path: Path, changes: dict[str, str], says: str) -> None:
    """With what is missing, and before any file is looked for."""
    with pytest.raises(ConfigurationError) as refused:
        load(tmp_path, **{f"SCORING_KAFKA_{name}": value for name, value in changes.items()})

    assert says in str(refused.value)


def test_a_token_needs_neither_user_nor_password(tmp_path: Path) -> None:
    """OAUTHBEARER knows neither."""
    login = {"SCORING_KAFKA_SASL_MECHANISM": "OAUTHBEARER", "SCORING_KAFKA_OAUTH_TOKEN_FILE": "/run/token"}

    assert load(tmp_path, SCORING_KAFKA_SECURITY_PROTOCOL="SASL_SSL", **login).kafka_sasl_username is None


def test_a_blank_group_is_refused(tmp_path: Path) -> None:
    """Nobody means it, and whoever looks for it finds nothing."""
    with pytest.raises(ConfigurationError, match="SCORING_KAFKA_GROUP: must not be blank"):
        load(tmp_path, SCORING_KAFKA_GROUP=" ")


@pytest.mark.parametrize(
    "brokers", ["kafka", "a:1,b:65535", "[::1]:9092, [fe80::1]"], ids=["default-port", "widest", "addresses"]
)
def test_brokers_as_people_write_them_are_taken(tmp_path: Path, brokers: str) -> None:
    """With or without their port."""
    assert load(tmp_path, SCORING_KAFKA_BOOTSTRAP_SERVERS=brokers).require_kafka() == brokers


@pytest.mark.parametrize("field", TOPICS)
@pytest.mark.parametrize(
    "name",
    ["a b", "a/b", "tëst", "a\n", ".", "..", "x" * 250],
    ids=["blank", "slash", "accent", "line-end", "dot", "dots", "long"],
)
def test_a_name_that_kafka_has_no_topic_for_is_refused(tmp_path: Path, field: str, name: str) -> None:
    """Of every topic: it could neither be made nor found."""
    with pytest.raises(ConfigurationError, match=f"{variable_of(field)}: no name of a topic"):
        load(tmp_path, **{variable_of(field): name})


@pytest.mark.parametrize("name", ["...", "a", "A_b-c.9", "x" * 249], ids=["dots", "short", "all-signs", "long"])
def test_what_kafka_takes_for_a_topic(tmp_path: Path, name: str) -> None:
    """The rule is Kafka's, and no stricter one."""
    assert load(tmp_path, SCORING_TOPIC_SCORING_EVENTS=name).topic_scoring_events == name


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(TOPICS, 2)), ids=str)
def test_topics_with_the_same_name_are_refused(tmp_path: Path, one: str, other: str) -> None:
    """One garbage message would be dead-lettered into the topic from which it is read, again and again."""
    with pytest.raises(ConfigurationError) as refused:
        load(tmp_path, **{variable_of(one): "mine", variable_of(other): "mine"})

    assert {variable_of(one), variable_of(other)} <= set(re.findall("SCORING_[A-Z_]+", str(refused.value)))


@pytest.mark.parametrize(
    "url",
    [
        "https://user:hunter2@judge.example/v1",
        "https://hunter2@judge.example/v1",
        "https://user:hun@ter2@judge.example/v1",
        "https:user:hunter2@judge.example/v1",
        r"https:\\user:hunter2@judge.example/v1",
        "https://judge.example/v1?key=hunter2",
        "https://judge.example/v1#hunter2",
        "ftp://judge.example/hunter2",
        "https:///hunter2",
        "https://:8000/hunter2",
        "https://judge.example:99999/hunter2",
        "https://judge.example:0/hunter2",
        "https://[::1/hunter2",
        " https://judge.example/hunter2",
    ],
    ids=[
        *("password", "user", "at-in-the-password", "no-slashes", "backslashes", "query", "fragment"),
        *("scheme", "no-host", "port-alone", "port-too-large", "port-nobody-has", "open-bracket", "blank"),
    ],
)
def test_a_judge_where_nothing_can_be_asked_is_refused(tmp_path: Path, url: str) -> None:
    """Every call would fail, or go astray; what may be a secret is not repeated, and where it belongs is told."""
    with pytest.raises(ConfigurationError, match=r"providers\.default\.base_url: expected https:") as refused:
        load(tmp_path, OPENAI_BASE_URL=url)

    assert "hun" not in str(refused.value)
    assert "api_key_env" in str(refused.value)
    assert "extra_headers" in str(refused.value)


@pytest.mark.parametrize("url", ["HTTPS://judge.example", "http://[::1]:8000/v1", "http://127.0.0.1:1/a/b%20c"])
def test_where_a_judge_may_be(tmp_path: Path, url: str) -> None:
    """A place and a path, the slash at its end apart."""
    assert load(tmp_path, OPENAI_BASE_URL=url + "/").config.providers["default"].base_url == url


def test_a_chain_overrides_the_defaults_and_inherits_the_rest(tmp_path: Path) -> None:
    """Defaults, then the chain; a chain nobody configured has the defaults."""
    settings = load(tmp_path, "defaults: {sample_rate: 0.5, max_reminders: 1}\nchains: {k: {max_reminders: 3}}")

    assert (settings.chain("k").sample_rate, settings.chain("k").max_reminders) == (0.5, 3)
    assert settings.chain("other") == settings.chain(None) == settings.config.defaults


def test_gates_of_a_chain_replace_those_of_the_defaults(tmp_path: Path) -> None:
    """As every key: whole, in their order, and `[]` turns them off."""
    yaml = """
        defaults: {gates: [{type: max_tool_calls, max: 5}], composite: {gate_weight: 1}}
        chains:
          k: {gates: [{type: file_exists, path: a}, {type: tool_called, tool: x}], composite: {judge_weight: 3}}
          without: {gates: [], composite: null}
          same: {}
        gates: {work_dir: "/s/{session_id}/x-{session_id}"}
    """
    settings = load(tmp_path, yaml)

    assert [g.title for g in settings.chain("k").gates] == ["file_exists a", "tool_called x"]
    assert settings.chain("k").composite == CompositeWeights(judge_weight=3)
    assert (settings.chain("without").gates, settings.chain("without").composite) == ((), None)
    assert settings.chain("same").gates == settings.config.defaults.gates != ()
    assert settings.chain("same").composite == CompositeWeights(gate_weight=1)
    assert settings.config.gates.work_dir == "/s/{session_id}/x-{session_id}"


def test_commands_are_found_by_a_pattern_and_in_named_tools(tmp_path: Path) -> None:
    """What can find a command is taken as it stands."""
    chain = load(tmp_path, "chains: {k: {command_pattern: 'my-tool\\s+(\\S+)', shell_tools: [shell.run]}}").chain("k")

    assert (chain.command_pattern, chain.shell_tools) == (r"my-tool\s+(\S+)", ("shell.run",))


def test_variables_fill_the_yaml(tmp_path: Path) -> None:
    """`${VAR:-default}`: the variable, else the default, anywhere in a string."""
    yaml = "providers: {a: {base_url: 'https://${HOST:-judge}.example/v1', model: '${MODEL}', timeout_s: '${T:-5}'}}"

    provider = load(tmp_path, yaml, MODEL="m-1").config.providers["a"]

    assert (provider.base_url, provider.model, provider.timeout_s) == ("https://judge.example/v1", "m-1", 5)


def test_secrets_come_from_files_too_and_never_show(tmp_path: Path) -> None:
    """`*_FILE` for every secret; no representation of the settings holds one."""
    (tmp_path / "url").write_text("postgresql://me:hunter2@db/x\n", encoding="utf-8")

    settings = load(tmp_path, SCORING_DATABASE_URL_FILE=str(tmp_path / "url"))

    assert settings.require_database() == "postgresql://me:hunter2@db/x"
    assert "hunter2" not in repr(settings) + str(settings.model_dump())


def test_a_secret_given_twice_is_refused(tmp_path: Path) -> None:
    """Which of the two counts would be a guess."""
    with pytest.raises(ConfigurationError, match="both set"):
        load(tmp_path, SCORING_DATABASE_URL="a", SCORING_DATABASE_URL_FILE="b")


def test_a_key_that_is_not_set_is_named_with_what_would_help(tmp_path: Path) -> None:
    """No key: the variable's name, and how to say that none is needed."""
    settings = load(tmp_path, "providers: {main: {api_key_env: JUDGE_KEY}, local: {api_key_env: null}}")

    with pytest.raises(ConfigurationError, match=r"JUDGE_KEY is not set.*api_key_env: null"):
        read_api_key(settings, "main", {})
    assert read_api_key(settings, "main", {"JUDGE_KEY": "k"}) == "k"
    assert read_api_key(settings, "local", {}) is None


def test_unknown_variables_of_ours_are_remembered(tmp_path: Path) -> None:
    """A misspelt SCORING_ variable is told at start; it may also be one of Kubernetes' service variables."""
    assert load(tmp_path, SCORING_SLOTZ="3").unknown_variables == ("SCORING_SLOTZ",)


def test_two_variables_have_a_second_spelling(tmp_path: Path) -> None:
    """Partitions and replication may be said with `KAFKA` in the name; the first spelling counts where both are set."""
    second = {"SCORING_KAFKA_TOPIC_PARTITIONS": "7", "SCORING_KAFKA_TOPIC_REPLICATION": "3"}

    settings = load(tmp_path, **second)
    of_both = load(tmp_path, **second, SCORING_TOPIC_PARTITIONS="9")

    assert (settings.topic_partitions, settings.topic_replication) == (7, 3)
    assert of_both.topic_partitions == 9
    assert settings.unknown_variables == of_both.unknown_variables == ()


def test_every_field_has_its_variable() -> None:
    """The rule is `SCORING_` and the field in capitals."""
    assert variable_of("kafka_bootstrap_servers") == "SCORING_KAFKA_BOOTSTRAP_SERVERS"
    assert variable_of("topic_partitions") == "SCORING_TOPIC_PARTITIONS"
