"""`check-config` announces each default that differs from the one of the previous version."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from previous_version import PreviousVersion
from tarsy_scoring.commands.check_config import check_config
from tarsy_scoring.config import changed_defaults
from tarsy_scoring.config.packaged import packaged_yaml
from tarsy_scoring.config.settings import Settings, variable_of

# The second module is that of the versions before the package `config`.
PRINT_SCHEMA = """
import json
try:
    from tarsy_scoring.config.settings import Settings
except ImportError:
    from tarsy_scoring.settings import Settings
print(json.dumps(Settings.model_json_schema()))
"""


def defaults_of(settings: dict[str, Any]) -> dict[str, Any]:
    """The default of each variable and YAML key; `*` stands for any name. Chains have the defaults of `defaults`."""
    found = {}
    for path, default in _defaults(settings, settings["$defs"]):
        top, *keys = path
        if top == "unknown_variables" or keys[:1] == ["chains"]:
            continue
        found[".".join(keys) if top == "config" else variable_of(top)] = default
    return found


def _defaults(node: dict[str, Any], known: dict[str, Any], *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    if "$ref" in node:
        node = known[node["$ref"].rpartition("/")[2]]
    for kind in node.get("anyOf", ()):
        yield from _defaults(kind, known, *path)
    if isinstance(named := node.get("additionalProperties"), dict):
        yield from _defaults(named, known, *path, "*")
    for name, inner in node.get("properties", {}).items():
        if "default" in inner and not isinstance(inner["default"], dict):  # those of a section follow one by one
            yield (*path, name), inner["default"]
        yield from _defaults(inner, known, *path, name)


def test_every_changed_default_is_announced(previous_version: PreviousVersion) -> None:
    """Also its two values, and nothing else: an entry of a setting that both versions have names a changed default."""
    was = defaults_of(previous_version.printed(PRINT_SCHEMA))
    now = defaults_of(Settings.model_json_schema())
    assert len(was) > 90, "the defaults of the previous version were read"
    announced = packaged_yaml("tarsy_scoring.config", "changed_defaults.yaml")["changed"]

    removed = was.keys() - now.keys()
    assert not removed, "a setting that a deployment may use was removed"
    changed = {(name, repr(was[name]), repr(now[name])) for name in was if was[name] != now[name]}
    of_both = {(a["setting"], repr(a["was"]), repr(a["now"])) for a in announced if a["setting"] in was}
    assert of_both == changed, "correct config/changed_defaults.yaml"
    for entry in announced:
        assert now[entry["setting"]] == entry["now"], entry["setting"]
        assert entry.keys() == {"setting", "was", "now", "effect"}


STARTABLE = {
    "SCORING_DATABASE_URL": "postgresql://db.internal/scores",
    "SCORING_KAFKA_BOOTSTRAP_SERVERS": "broker.internal:9092",
    "SCORING_TIMELINE_SOURCE": "tarsy-api",
    "SCORING_TIMELINE_API_URL": "https://tarsy.internal",
    "OPENAI_API_KEY": "sk-test",
}
CHANGES = {
    "previous_version": "0123456789abcdef",
    "changed": [
        {"setting": "SCORING_SLOTS", "was": 8, "now": 16, "effect": "A worker judges more scores at once."},
        {"setting": "SCORING_LEASE_S", "was": 90, "now": 60, "effect": "Lost scores are taken back sooner."},
        {"setting": "defaults.criteria", "was": "old", "now": "new", "effect": "Totals are not comparable."},
        {"setting": "defaults.composite.gate_weight", "was": None, "now": 0, "effect": "Gates do not count."},
        {"setting": "providers.*.timeout_s", "was": 200, "now": 300, "effect": "Calls may last longer."},
        {"setting": "providers.*.model", "was": "gpt-4", "now": "gpt-4.1", "effect": "Another judge."},
    ],
}


@pytest.mark.parametrize(
    ("config", "environment", "is_set"),
    [
        pytest.param({}, {}, ["defaults.composite.gate_weight"], id="nothing is set"),
        pytest.param(
            {
                "defaults": {"criteria": "cli-tool-use"},
                "providers": {"a": {"model": "m", "timeout_s": 1}, "b": {"model": "n"}},
            },
            {"SCORING_SLOTS": "16"},
            ["SCORING_SLOTS", "defaults.criteria", "defaults.composite.gate_weight", "providers.*.model"],
            id="some are set, one by one of two providers only, one to its default",
        ),
    ],
)
def test_changes_come_first_with_their_effect_here(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    config: dict[str, Any],
    environment: dict[str, str],
    is_set: list[str],
) -> None:
    (tmp_path / "scoring.yaml").write_text(json.dumps(config), encoding="utf-8")
    monkeypatch.setattr(changed_defaults, "packaged_yaml", lambda *_: CHANGES)
    for name, value in (STARTABLE | environment | {"SCORING_CONFIG": str(tmp_path / "scoring.yaml")}).items():
        monkeypatch.setenv(name, value)

    document = json.loads(CliRunner().invoke(check_config, ["--json"], catch_exceptions=False).stdout)
    brief, text = (
        CliRunner().invoke(check_config, options, catch_exceptions=False).stdout for options in ([], ["--all"])
    )

    assert list(document)[:2] == ["previous_version", "changed_defaults"]
    assert [c["setting"] for c in document["changed_defaults"]] == [c["setting"] for c in CHANGES["changed"]]
    assert [c["setting"] for c in document["changed_defaults"] if c["is_set"]] == is_set
    assert text.startswith(
        "defaults that have changed since 0123456:\n  SCORING_SLOTS: 16, was 8\n    A worker judges more"
    )
    assert text.count("set here: no effect") == len(is_set)
    assert text.index("providers.*.model") < text.index("variables:")
    assert brief.startswith("variables that differ")
    assert "A worker judges more" not in brief
