"""The documentation explains every word of the interface, and its example configuration is complete."""

import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from contracts import ALL, INCOMING, INSIGHTS, OUTGOING, ROOT, load_schema
from pydantic import BaseModel

from tarsy_scoring.config.chains import Config
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.config.settings import SECRETS, Settings, variable_of
from tarsy_scoring.events import EventType, cloudevents_headers
from tarsy_scoring.queue.admission import Disposition
from tarsy_scoring.wiring import check_settings

EVENTS = (ROOT / "docs/events.md").read_text("utf-8")
CONFIGURATION = (ROOT / "docs/configuration.md").read_text("utf-8")
EXAMPLE = ROOT / "docs/config.example.yaml"
DOCUMENT = yaml.safe_load((ROOT / "schemas/asyncapi.yaml").read_text("utf-8"))

SENT = {"event_id": "e", "type": "t", "session_id": "s", "timestamp": "t"}


def explained_in(page: str) -> set[str]:
    """Words that a table of the page explains: those in its first column, in backquotes."""
    rows = [line.split(" | ")[0] for line in page.splitlines() if line.startswith("| `")]
    return {word for row in rows for word in re.findall(r"`([^`]+)`", row)}


def reasons_in_code() -> set[str]:
    """Words that intake and decoding put into `scoring-error`."""
    sources = [
        (ROOT / "service/tarsy_scoring" / f"{m}.py").read_text("utf-8")
        for m in ("events", "queue/intake", "queue/inbox")
    ]
    return {word for source in sources for word in re.findall(r"InvalidMessage\(\s*\"(\w+)\"", source)}


WORDS = {
    "dispositions": set(get_args(Disposition)),
    "phases": set(load_schema("scoring-progress")["properties"]["phase"]["enum"]),
    "reasons": reasons_in_code(),
    "cloudevents-headers": {name for name, _ in cloudevents_headers(SENT)},
    "dead-letter-headers": set(DOCUMENT["components"]["messages"]["deadLetter"]["headers"]["properties"]),
    "topics": {channel["address"] for channel in DOCUMENT["channels"].values()},
    "fields-in": {f for model in INCOMING.values() for f in model.model_fields},
}


def test_every_word_of_the_interface_is_explained() -> None:
    for name, words in WORDS.items():
        assert len(words) > 1, name
        assert words <= explained_in(EVENTS), name


def test_page_names_every_message_type_and_outgoing_field() -> None:
    types = {*get_args(EventType), "session.completed", "scoring.rescore_requested"}
    types |= {name.replace("-", ".", 1).replace("-", "_") for name in INSIGHTS}
    fields = {f for name in OUTGOING for f in load_schema(name)["properties"]}

    assert {w for w in types | fields if f"`{w}`" not in EVENTS} == set()


def test_rows_of_the_crash_table_are_in_order_and_name_tests_that_exist() -> None:
    _, _, table = (ROOT / "docs/architecture.md").read_text("utf-8").partition("| # | crash or failure |")
    rows = [row.split(" | ")[0] for row in table.partition("\n\n")[0].splitlines()[2:]]
    numbers = [(int(n), letter) for row in rows for n, letter in re.findall(r"(\d+)([a-z]?)", row)]

    assert len(numbers) > 40
    assert numbers == sorted(set(numbers))
    assert [t for t in re.findall(r"`(\w+/test_\w+\.py)`", table) if not (ROOT / "tests" / t).exists()] == []


# --- configuration -------------------------------------------------------------------------------------


def keys_of(model: type[BaseModel]) -> set[str]:
    """Dotted key paths that the YAML may have; where the keys of a map are free, they are left out."""
    paths = set()
    for name, field in model.model_fields.items():
        paths.add(name)
        inner = [a for a in (field.annotation, *get_args(field.annotation)) if isinstance(a, type)]
        for nested in (a for a in inner if issubclass(a, BaseModel)):
            paths |= {f"{name}.{p}" for p in keys_of(nested)}
    return paths


FREE = ("providers", "chains")


def keys_in(value: Any, free: tuple[str, ...] = FREE, path: str = "") -> set[str]:
    """Dotted key paths of a loaded YAML, in the form of `keys_of`."""
    if not isinstance(value, dict):
        return set()
    found = set()
    for key, below in value.items():
        here = f"{path}.{key}" if path else key
        found.add(here)
        if path == "" and key in free:
            found |= {p for one in below.values() for p in keys_in(one, (), here)}
        else:
            found |= keys_in(below, (), here)
    return found


def test_page_of_settings_has_every_variable() -> None:
    fields = [f for f in Settings.model_fields if f not in ("config", "unknown_variables")]
    variables = {variable_of(f) for f in fields} | {"SCORING_CONFIG", "OPENAI_API_KEY", "OPENAI_BASE_URL"}

    assert variables <= explained_in(CONFIGURATION)
    assert [f for f in SECRETS if f"`{variable_of(f)}_FILE`" not in CONFIGURATION] == []


def test_example_file_is_accepted_without_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    (tmp_path / "key").write_text("not-a-key\n", "utf-8")
    environ = {
        "SCORING_CONFIG": str(EXAMPLE),
        "OPENAI_API_KEY_FILE": str(tmp_path / "key"),
        "SCORING_DATABASE_URL": "postgresql://scoring@db.example/scoring",
        "SCORING_KAFKA_BOOTSTRAP_SERVERS": "kafka.example:9092",
        "SCORING_TIMELINE_SOURCE": "files",
        "SCORING_TIMELINE_DIR": str(tmp_path),
    }

    settings = load_settings(environ)
    check_settings(settings, ("intake", "judging", "relay"), environ)

    assert settings.unknown_variables == ()
    chains = (settings.config.defaults, *settings.config.chains.values())
    assert [c for c in chains if c.gates_that_cannot_pass(settings.config.gates)] == []
    assert capsys.readouterr().out == ""
    assert list(recwarn) == []


def test_example_file_has_every_key() -> None:
    """Those of targets in comments, because a target whose variable is not set ends the start."""
    text = EXAMPLE.read_text("utf-8")
    comments = re.findall(r"(\w+):", "".join(re.findall(r"#.*", text)))

    wanted = {key for key in keys_of(Config) if not key.startswith("chains.")}  # the same as below `defaults`
    commented = {key for key in wanted if key.startswith("notifications.")}

    assert len(wanted) > 40
    assert wanted - commented - keys_in(yaml.safe_load(text)) == set()
    assert {key.rpartition(".")[2] for key in commented} - set(comments) == set()


def test_schemas_folder_holds_exactly_the_known_schemas() -> None:
    assert {p.name for p in (ROOT / "schemas").glob("*.json")} == {f"{n}.v1.json" for n in ALL} | {"openapi.json"}
