"""`tarsy-scoring criteria`: what prompt authors see, and what their scripts read."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from tarsy_scoring.commands.criteria import criteria
from tarsy_scoring.errors import ConfigurationError
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
    write(tmp_path / "criteria" / "replaced.yaml", name="investigation-outcome")
    file = tmp_path / "config.yaml"
    config = {
        "criteria_dirs": ["./criteria"],
        "defaults": {"criteria": "own"},
        "chains": {"kubernetes": {"criteria": "cli-tool-use"}, "security": {}, "net": {"criteria": "cli-tool-use"}},
    }
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    return {"SCORING_CONFIG": str(file)}


# --- list ----------------------------------------------------------------------------------------------


def test_list_needs_no_configuration() -> None:
    """The shipped criteria, the default one marked."""
    listed = document(invoke("list", "--json"))
    assert [c["name"] for c in listed] == [c.name for c in load_criteria()]
    assert {c["source"] for c in listed} == {"shipped"}
    assert [c["name"] for c in listed if c["is_default"]] == ["investigation-methodology"]


def test_list_tells_where_criteria_come_from_and_who_uses_them(tmp_path: Path, configured: dict[str, str]) -> None:
    """Shipped or the path of the file; chains by name, also those that inherit the defaults."""
    listed = {c["name"]: c for c in document(invoke("list", "--json", **configured))}
    own = listed["own"]
    assert (own["strategy"], own["is_default"], own["chains"]) == ("two_turn", True, ["security"])
    assert Path(own["source"]) == tmp_path / "criteria" / "own.yaml"
    assert own["criteria_hash"] == read_criteria_file(Path(own["source"])).criteria_hash
    assert listed["cli-tool-use"]["chains"] == ["kubernetes", "net"]
    assert (listed["cli-tool-use"]["source"], listed["cli-tool-use"]["is_default"]) == ("shipped", False)


def test_list_tells_that_a_file_takes_the_place_of_a_shipped_one(tmp_path: Path, configured: dict[str, str]) -> None:
    """The operator's file has the last word, and the list says which it is."""
    [replaced] = [c for c in document(invoke("list", "--json", **configured)) if c["name"] == "investigation-outcome"]
    assert Path(replaced["source"]) == tmp_path / "criteria" / "replaced.yaml"


def test_list_for_people_has_twelve_digits_of_each_hash(configured: dict[str, str]) -> None:
    """Enough to compare by eye; the chain of no name is `defaults`."""
    shown = invoke("list", **configured)
    assert shown.exit_code == 0
    assert METHODOLOGY.criteria_hash[:12] in shown.stdout
    assert METHODOLOGY.criteria_hash[:13] not in shown.stdout
    assert "defaults" in shown.stdout
    assert "shipped" in shown.stdout


def test_list_refuses_a_folder_with_a_file_that_is_not_valid(tmp_path: Path, configured: dict[str, str]) -> None:
    """As a worker would, with file and line."""
    (tmp_path / "criteria" / "bad.yaml").write_text("name: bad\npromt: x\n", encoding="utf-8")
    refused = invoke("list", **configured)
    assert isinstance(refused.exception, ConfigurationError)
    assert "bad.yaml, line 1: " in str(refused.exception)


# --- show ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [c.name for c in load_criteria()])
def test_show_prints_yaml_with_everything(name: str) -> None:
    """One YAML document: the file's keys as they are hashed, what code adds, and the hashes."""
    shown, shipped = yaml.safe_load(invoke("show", name).stdout), load_criteria().get(name)
    assert shown.pop("source") == "shipped"
    assert shown.pop("criteria_hash") == shipped.criteria_hash
    assert shown == shipped.content


@pytest.mark.parametrize("name", [c.name for c in load_criteria()])
def test_the_first_part_of_show_is_a_criteria_file(name: str, tmp_path: Path) -> None:
    """To start one's own from: the same hash until something is changed."""
    first, second = invoke("show", name).stdout.split("# Added by code")
    (tmp_path / "copy.yaml").write_text(first, encoding="utf-8")
    assert read_criteria_file(tmp_path / "copy.yaml").criteria_hash == load_criteria().get(name).criteria_hash
    assert "added_by_code" in second


def test_show_keeps_prompts_readable() -> None:
    """Prompts are blocks, not one quoted line; the order is that of the documentation."""
    lines = invoke("show", "investigation-outcome").stdout.splitlines()
    assert "system_prompt: |-" in lines
    assert "  correct: [60, 100]" in lines
    assert lines.index("strategy: two_turn") < lines.index("system_prompt: |-") < lines.index("prompt: |-")


def test_show_as_json_is_the_stored_content() -> None:
    """What `scoring_criteria` keeps, with the hash and the source."""
    shown = document(invoke("show", "investigation-methodology", "--json"))
    identity = {"criteria_hash": METHODOLOGY.criteria_hash, "source": "shipped"}
    assert shown == json.loads(json.dumps(METHODOLOGY.content)) | identity


def test_show_prompt_prints_the_opening_messages_without_evidence() -> None:
    """As the judge gets them: the notice of code behind the system prompt, the form in place, the evidence open."""
    shown = invoke("show", "investigation-methodology", "--prompt").stdout
    system, user = shown.removeprefix("--- system ---\n").split("--- user ---\n")
    assert system.strip().endswith(METHODOLOGY.added_by_code["fence_notice"])
    assert user.strip().endswith(METHODOLOGY.added_by_code["output_schema"])
    assert [user.count(p) for p in ("{{ALERT_DATA}}", "{{SESSION_CONVERSATION}}", "{{OUTPUT_SCHEMA}}")] == [1, 1, 0]


def test_show_prompt_as_json_is_a_list_of_messages(tmp_path: Path) -> None:
    """The same shape as `score --dry-run --json`."""
    messages = document(invoke("show", write(tmp_path / "own.yaml"), "--prompt", "--json"))["messages"]
    assert [m["role"] for m in messages] == ["system", "user"]
    assert messages[0]["content"].startswith(OWN["system_prompt"])
    assert messages[1]["content"].startswith("Alert: {{ALERT_DATA}}\nSession: {{SESSION_CONVERSATION}}\nAnswer in this")


@pytest.mark.parametrize("command", [("show", "own"), ("diff", "own", "own")], ids=["show", "diff"])
def test_a_name_is_meant_before_a_path(tmp_path: Path, command: tuple[str, ...], configured: dict[str, str]) -> None:
    """A file in the working directory that happens to be called like criteria changes nothing."""
    with CliRunner().isolated_filesystem(tmp_path):
        write(Path.cwd() / "own", name="from-the-file")
        assert "from-the-file" not in invoke(*command, "--json", **configured).stdout
        assert "from-the-file" in invoke(*command, "--json").stdout


@pytest.mark.parametrize("command", [("show",), ("diff", "investigation-outcome")], ids=["show", "diff"])
def test_a_name_nobody_has_is_asked_wrongly(command: tuple[str, ...]) -> None:
    """Status 2, with the names that exist."""
    refused = invoke(*command, "investigation-methodologie")
    assert refused.exit_code == 2
    assert "no criteria are called 'investigation-methodologie'" in refused.stderr
    assert "investigation-methodology" in refused.stderr


@pytest.mark.parametrize("path", ["missing.yaml", "./missing", "missing.yml"])
def test_a_path_that_leads_nowhere_is_told_as_a_path(path: str) -> None:
    """Who writes a path wants no list of names."""
    refused = invoke("show", path)
    assert isinstance(refused.exception, ConfigurationError)
    assert "cannot be read: No such file" in str(refused.exception)


# --- diff ----------------------------------------------------------------------------------------------


def test_diff_shows_each_changed_key_and_no_other(tmp_path: Path) -> None:
    """A unified diff per key; keys that are the same, and hashes that only follow, are left out."""
    a = write(tmp_path / "a.yaml")
    b = write(tmp_path / "b.yaml", system_prompt="You judge.\nBe fair.", failure_vocabulary={"wrong": "It is."})
    shown = invoke("diff", a, b)
    assert shown.exit_code == 0
    assert shown.stdout.splitlines() == [
        "system_prompt",
        f"--- {a}",
        f"+++ {b}",
        "@@ -1,2 +1,2 @@",
        " You judge.",
        "-Be strict.",
        "+Be fair.",
        "",
        "failure_vocabulary",
        f"--- {a}",
        f"+++ {b}",
        "@@ -0,0 +1 @@",
        "+wrong: It is.",
        "",
    ]


def test_diff_shows_what_code_adds_differently(tmp_path: Path) -> None:
    """Other bands, another answer form: also what the file does not say itself is compared."""
    a, b = write(tmp_path / "a.yaml"), write(tmp_path / "b.yaml", bands={"good": [60, 100], "bad": [0, 59]})
    changes = {c["key"]: c for c in document(invoke("diff", a, b, "--json"))["changes"]}
    assert next(iter(changes)) == "bands"
    assert "added_by_code.output_schema" in changes
    assert "added_by_code.fence_notice" not in changes
    assert changes["bands"]["b"] == {"good": [60, 100], "bad": [0, 59]}
    assert "+good: [60, 100]" in changes["bands"]["diff"]


def test_diff_of_the_same_criteria_says_so(tmp_path: Path) -> None:
    """Another layout of the same content is no difference."""
    a = write(tmp_path / "a.yaml")
    other_layout = tmp_path / "b.yaml"
    other_layout.write_text(json.dumps(dict(reversed(OWN.items()))), encoding="utf-8")
    shown = invoke("diff", a, str(other_layout))
    assert (shown.exit_code, shown.stdout.startswith("no difference: both have the hash ")) == (0, True)
    same = document(invoke("diff", a, str(other_layout), "--json"))
    assert (same["is_same"], same["changes"]) == (True, [])
    assert same["a"]["criteria_hash"] == same["b"]["criteria_hash"]


def test_diff_compares_names_with_files(tmp_path: Path) -> None:
    """What a prompt author wants to know before a change goes live."""
    told = document(invoke("diff", "investigation-methodology", write(tmp_path / "own.yaml"), "--json"))
    assert (told["a"]["source"], told["b"]["source"]) == ("shipped", str(tmp_path / "own.yaml"))
    assert told["is_same"] is False
    [categories] = [c for c in told["changes"] if c["key"] == "categories"]
    assert (len(categories["a"]), categories["b"]) == (4, None)


# --- validate ------------------------------------------------------------------------------------------


def test_validate_tells_name_strategy_and_hash_of_valid_files(tmp_path: Path) -> None:
    """Status 0, a line per file; needs no settings, so a broken configuration does not matter."""
    a, b = write(tmp_path / "a.yaml"), write(tmp_path / "b.yaml", name="other")
    shown = invoke("validate", a, b, SCORING_CONFIG="/does/not/exist")
    assert (shown.exit_code, shown.stderr) == (0, "")
    digits = read_criteria_file(Path(a)).criteria_hash[:12]
    assert shown.stdout.splitlines()[0] == f"{a}: valid (own, two_turn, {digits})"
    assert "b.yaml: valid (other, " in shown.stdout


def test_validate_tells_every_fault_of_every_file(tmp_path: Path) -> None:
    """Status 2; a line per fault with file, line and reason, and the valid files all the same."""
    good = write(tmp_path / "good.yaml")
    bad = tmp_path / "bad.yaml"
    bad.write_text("name: two words\nsystem_prompt: x\nprompt: x\npromt: x\n", encoding="utf-8")
    worse = tmp_path / "worse.yaml"
    worse.write_text("name: [x\n", encoding="utf-8")
    shown = invoke("validate", str(bad), good, str(worse), str(tmp_path / "missing.yaml"))
    assert shown.exit_code == 2
    assert shown.stdout.startswith(f"{good}: valid (own, ")
    told = shown.stderr.splitlines()
    assert [line.split(": ")[0] for line in told] == [
        f"{bad}, line 1",
        f"{bad}, line 3",
        f"{bad}, line 4",
        f"{worse}, line 2",
        str(tmp_path / "missing.yaml"),
    ]
    assert told[2] == f"{bad}, line 4: promt: no such key; did you mean 'prompt'?"


def test_validate_as_json_has_an_entry_per_file(tmp_path: Path) -> None:
    """For pipelines and editors: lines and keys apart."""
    good = write(tmp_path / "good.yaml")
    bad = write(tmp_path / "bad.yaml", reminder_prompt=None)
    shown = invoke("validate", good, bad, "--json")
    assert shown.exit_code == 2
    first, second = json.loads(shown.stdout)
    assert (first["file"], first["is_valid"], first["name"], first["faults"]) == (good, True, "own", [])
    assert first["criteria_hash"] == read_criteria_file(Path(good)).criteria_hash
    assert (second["file"], second["is_valid"], second["criteria_hash"]) == (bad, False, None)
    [fault] = second["faults"]
    assert fault["key"] is None
    assert "two_turn needs follow_up_prompt and reminder_prompt" in fault["reason"]
    line = Path(bad).read_text(encoding="utf-8").splitlines()[fault["line"] - 1]
    assert line.startswith("follow_up_prompt:")


def test_validate_wants_at_least_one_file() -> None:
    """Nothing to check is a mistake in a pipeline, not a success."""
    assert invoke("validate").exit_code == 2


@pytest.mark.parametrize(
    "file", sorted((Path(__file__).parents[2] / "service/tarsy_scoring/judge/shipped_criteria").iterdir())
)
def test_the_shipped_files_are_valid(file: Path) -> None:
    """And each is called like its file."""
    [told] = document(invoke("validate", str(file), "--json"))
    assert (told["is_valid"], told["name"]) == (True, file.stem)
