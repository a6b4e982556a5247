"""`tokens list`, and the check of tokens in `doctor`: names, scopes and expiry, never a digest."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tarsy_scoring.cli import cli
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.web.edge.tokens import utc_today

DIGEST = "5f16a6a3d7f8d3e1b0a2c4e6f8091a2b3c4d5e6f708192a3b4c5d6e7f8091a2"


@pytest.fixture
def tokens_file(tmp_path: Path) -> Path:
    today = utc_today()
    days = {"old": -1, "soon": 14, "later": 15, "never": None}
    entries = [
        {"name": name, "scope": "read", "sha256": f"{DIGEST}{number}"}
        | ({} if left is None else {"expires": today + timedelta(days=left)})
        for number, (name, left) in enumerate(days.items())
    ]
    path = tmp_path / "tokens.yaml"
    path.write_text(yaml.safe_dump(entries), encoding="utf-8")
    return path


def run(*arguments: str, **env: str) -> Any:
    return CliRunner().invoke(cli, ["tokens", "list", *arguments], env=env)


def test_tokens_are_listed_with_their_state(tokens_file: Path) -> None:
    listed = run("--json", SCORING_API_TOKENS_FILE=str(tokens_file))
    shown = run(SCORING_API_TOKENS_FILE=str(tokens_file))

    assert (listed.exit_code, shown.exit_code) == (0, 0)
    assert DIGEST not in listed.output + shown.output
    tokens = json.loads(listed.stdout)["tokens"]
    assert [(t["name"], t["scope"], t["state"]) for t in tokens] == [
        ("later", "read", "valid"),
        ("never", "read", "valid"),
        ("old", "read", "expired"),
        ("soon", "read", "expires soon"),
    ]
    assert [t["expires"] for t in tokens][1] is None
    assert tokens[2]["expires"] == str(utc_today() - timedelta(days=1))
    assert len(shown.stdout.splitlines()) == 4
    assert f"expired, {tokens[2]['expires']}" in shown.stdout


def test_tokens_without_a_file_are_asked_wrongly() -> None:
    assert isinstance(run().exception, ConfigurationError)
