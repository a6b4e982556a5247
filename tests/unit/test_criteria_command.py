"""`tarsy-scoring criteria`: its text for prompt authors, and its JSON for their scripts."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from tarsy_scoring.commands.criteria import criteria
from tarsy_scoring.judge.criteria import load_criteria, read_criteria_file

METHODOLOGY = load_criteria().get("investigation-methodology")
OWN: dict[str, Any] = {
    "name": "own",
    "system_prompt": "You judge.\nBe strict.",
    "prompt": "Alert: {{ALERT_DATA}}\nSession: {{SESSION_CONVERSATION}}\n{{OUTPUT_SCHEMA}}",
    "follow_up_prompt": "Name the missing tools.",
    "reminder_prompt": "The total alone.",
    "bands": {"good": [50, 100], "bad": [0, 49]},
}


def invoke(*arguments: str, **env: str) -> Result:
    return CliRunner().invoke(criteria, arguments, env=env, prog_name="tarsy-scoring criteria")


def document(result: Result) -> Any:
    """The one JSON document on standard output of a command that worked."""
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


def write(file: Path, **changes: Any) -> str:
    file.parent.mkdir(exist_ok=True)
    file.write_text(yaml.safe_dump(OWN | changes, sort_keys=False), encoding="utf-8")
    return str(file)


@pytest.fixture
def configured(tmp_path: Path) -> dict[str, str]:
    """An environment with criteria of its own and three chains."""
    write(tmp_path / "criteria" / "own.yaml")
    write(tmp_path / "criteria" / "replaced.yaml", name="investigation-structured")
    file = tmp_path / "config.yaml"
    config = {
        "criteria_dirs": ["./criteria"],
        "defaults": {"criteria": "own"},
        "chains": {"kubernetes": {"criteria": "cli-tool-use"}, "security": {}, "net": {"criteria": "cli-tool-use"}},
    }
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    return {"SCORING_CONFIG": str(file)}


# --- list ----------------------------------------------------------------------------------------------


def test_list_shows_where_criteria_come_from_and_who_uses_them(tmp_path: Path, configured: dict[str, str]) -> None:
    listed = {c["name"]: c for c in document(invoke("list", "--json", **configured))}
    own = listed["own"]
    assert (own["strategy"], own["is_default"], own["chains"]) == ("two_turn", True, ["security"])
    assert Path(own["source"]) == tmp_path / "criteria" / "own.yaml"
    assert own["criteria_hash"] == read_criteria_file(Path(own["source"])).criteria_hash
    assert listed["cli-tool-use"]["chains"] == ["kubernetes", "net"]
    assert (listed["cli-tool-use"]["source"], listed["cli-tool-use"]["is_default"]) == ("shipped", False)


# --- show ----------------------------------------------------------------------------------------------


def test_show_prints_a_criteria_file_and_what_code_adds(tmp_path: Path) -> None:
    for one in load_criteria():
        shown = invoke("show", one.name).stdout
        document = yaml.safe_load(shown)
        assert (document.pop("source"), document.pop("criteria_hash")) == ("shipped", one.criteria_hash)
        assert document == one.content
        assert "system_prompt: |-" in shown.splitlines()
        (tmp_path / "copy.yaml").write_text(shown.partition("# Added by code")[0], encoding="utf-8")
        assert read_criteria_file(tmp_path / "copy.yaml").criteria_hash == one.criteria_hash


@pytest.mark.parametrize("command", [("show", "own"), ("diff", "own", "own")], ids=["show", "diff"])
def test_an_argument_is_first_a_name(tmp_path: Path, command: tuple[str, ...], configured: dict[str, str]) -> None:
    with CliRunner().isolated_filesystem(tmp_path):
        write(Path.cwd() / "own", name="from-the-file")
        assert "from-the-file" not in invoke(*command, "--json", **configured).stdout
        assert "from-the-file" in invoke(*command, "--json").stdout


def test_unknown_names_and_paths_are_refused() -> None:
    for command in (("show",), ("diff", "investigation-structured")):
        refused = invoke(*command, "investigation-methodologie")
        assert refused.exit_code == 2
        assert "no criteria are called 'investigation-methodologie'" in refused.stderr
        assert "investigation-methodology" in refused.stderr
    for path in ("missing.yaml", "./missing", "missing.yml"):
        assert "cannot be read: " in str(invoke("show", path).exception)


# --- diff ----------------------------------------------------------------------------------------------


def test_diff_shows_what_changed_also_in_what_code_adds(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.yaml"), write(tmp_path / "b.yaml", bands={"good": [60, 100], "bad": [0, 59]})
    lines = invoke("diff", a, b).stdout.splitlines()
    changes = {c["key"]: c for c in document(invoke("diff", a, b, "--json"))["changes"]}
    assert lines[:2] == [f"--- {a}", f"+++ {b}"]
    assert {"-  - 50", "+  - 60"} <= set(lines)
    assert {"bands", "added_by_code.output_schema"} <= changes.keys()
    assert "system_prompt" not in changes
    assert changes["bands"]["b"] == {"good": [60, 100], "bad": [0, 59]}


def test_diff_of_the_same_criteria_says_so(tmp_path: Path) -> None:
    a = write(tmp_path / "a.yaml")
    other_layout = tmp_path / "b.yaml"
    other_layout.write_text(json.dumps(dict(reversed(OWN.items()))), encoding="utf-8")
    shown = invoke("diff", a, str(other_layout))
    assert (shown.exit_code, shown.stdout.startswith("no difference: both have the hash ")) == (0, True)
    same = document(invoke("diff", a, str(other_layout), "--json"))
    assert (same["is_same"], same["changes"]) == (True, [])
    assert same["a"]["criteria_hash"] == same["b"]["criteria_hash"]


# --- validate ------------------------------------------------------------------------------------------


def test_validate_reports_every_fault_of_every_file(tmp_path: Path) -> None:
    good, worse, missing = write(tmp_path / "good.yaml"), tmp_path / "worse.yaml", tmp_path / "missing.yaml"
    bad = write(tmp_path / "bad.yaml", name="two words", promt="x")
    worse.write_text("name: [x\n", encoding="utf-8")
    files = (bad, good, str(worse), str(missing))
    shown, as_json = invoke("validate", *files), invoke("validate", *files, "--json")

    assert (shown.exit_code, as_json.exit_code) == (2, 2)
    assert shown.stdout.startswith(f"{good}: valid (own, ")
    assert f"{bad}: promt: no such key; did you mean 'prompt'?" in shown.stderr.splitlines()
    documents = json.loads(as_json.stdout)
    assert [(d["file"], d["is_valid"]) for d in documents] == [(file, file == good) for file in files]
    assert [fault for d in documents for fault in d["faults"]] == shown.stderr.splitlines()
    assert documents[1]["criteria_hash"] == read_criteria_file(Path(good)).criteria_hash
