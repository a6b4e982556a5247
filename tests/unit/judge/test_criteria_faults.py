"""Criteria files that are not valid: every fault with its line, so that one round of mending suffices."""

from pathlib import Path

import pytest

from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.judge.criteria import InvalidCriteria, load_criteria, read_criteria_file

VALID = """\
name: own
strategy: rubric
system_prompt: Judge.
prompt: |
  {{ALERT_DATA}}
  {{SESSION_CONVERSATION}}
  {{OUTPUT_SCHEMA}}
rubric:
  - {id: completion, weight: 0.7, description: It was done.}
  - id: efficiency
    weight: 0.3
    description: Few calls.
pass_threshold: 0.7
"""


def faults_of(tmp_path: Path, text: str | bytes) -> list[tuple[int | None, str, str]]:
    """Line, key and reason of each fault."""
    file = tmp_path / "own.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InvalidCriteria) as refused:
        read_criteria_file(file)
    return [(fault.line, fault.key, fault.reason) for fault in refused.value.problems]


def test_a_valid_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(VALID, encoding="utf-8")
    assert read_criteria_file(tmp_path / "own.yaml").name == "own"


@pytest.mark.parametrize(
    ("old", "new", "line", "key", "reason"),
    [
        pytest.param("name: own", "name: two words", 1, "name", "pattern", id="value"),
        pytest.param("strategy: rubric", "strategy: rubrik", 2, "strategy", "'rubric'", id="choice"),
        pytest.param("{{ALERT_DATA}}", "{{ALERT_DATE}}", 4, "prompt", "'ALERT_DATA'", id="inside-of-a-prompt"),
        pytest.param("pass_threshold", "pass_treshold", 13, "pass_treshold", "'pass_threshold'", id="unknown-key"),
        pytest.param(
            "Few calls.", "Few.\n    wieght: 1", 13, "rubric.1.wieght", "'weight'", id="unknown-key-of-a-part"
        ),
        pytest.param("    weight: 0.3\n", "", 10, "rubric.1.weight", "required", id="missing-key-of-a-part"),
        pytest.param("system_prompt: Judge.\n", "", 1, "system_prompt", "required", id="missing-key"),
        pytest.param("weight: 0.7", "weight: 7", 9, "rubric.0.weight", "less than", id="flow-style"),
        pytest.param("weight: 0.3", "weight: 0.2", 8, "", "add up to 0.9", id="between-parts"),
        pytest.param("strategy: rubric", "strategy: structured", 2, "", "has no rubric", id="between-keys"),
        pytest.param("strategy: rubric", "follow_up_prompt: Name.", 2, "", "needs follow_up_prompt", id="absent-key"),
        pytest.param("id: efficiency", "id: completion", 8, "rubric", "given twice", id="id-twice"),
        pytest.param("pass_threshold:", "bands: {ok: [0, 101]}\npass_threshold:", 13, "bands.ok.1", "100", id="band"),
        pytest.param("pass_threshold:", "bands:\n  A b: [0, 1]\npass_threshold:", 14, "bands.A b", "pattern", id="id"),
        pytest.param("pass_threshold: 0.7", "1: 0.7", 13, "1", "strings", id="key-that-is-a-number"),
    ],
)
def test_a_fault_is_told_with_the_line_of_its_key(
    tmp_path: Path, old: str, new: str, line: int, key: str, reason: str
) -> None:
    assert VALID.count(old) == 1
    [(told_line, told_key, told_reason)] = faults_of(tmp_path, VALID.replace(old, new))
    assert (told_line, told_key) == (line, key)
    assert reason in told_reason


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        pytest.param("name: [own\nprompt: x\n", 2, "not YAML", id="not-yaml"),
        pytest.param("name: own\nprompt: a: b\n", 2, "not YAML: mapping values", id="colon-in-plain-text"),
        pytest.param("name: own\n[a, b]: x\n", 2, "not YAML", id="key-that-is-a-list"),
        pytest.param("name: own\nprompt: \x1b[31m\n", 2, "the character 0x1b", id="control-character"),
        pytest.param("name: own\n---\nname: other\n", 2, "not YAML", id="two-documents"),
        pytest.param("name: own\nother: *nothing\n", 2, "not YAML: found undefined alias", id="unknown-alias"),
        pytest.param("- a\n", None, "expected a mapping at the top, found list", id="list"),
        pytest.param("", None, "found NoneType", id="empty"),
        pytest.param(b"name: \xff\n", None, "not UTF-8", id="not-utf-8"),
    ],
)
def test_what_is_no_mapping_is_one_fault(tmp_path: Path, text: str | bytes, line: int | None, reason: str) -> None:
    [(told_line, key, told_reason)] = faults_of(tmp_path, text)
    assert (told_line, key) == (line, "")
    assert reason in told_reason


@pytest.mark.parametrize("name", ["missing.yaml", "."])
def test_what_cannot_be_read_is_a_fault(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidCriteria, match="cannot be read: "):
        read_criteria_file(tmp_path / name)


def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    text = VALID.replace("pass_threshold", "name: other\npass_threshold").replace("id: completion", "id: a, id: b")
    assert faults_of(tmp_path, text) == [
        (9, "rubric.0.id", "is given twice, first in line 9"),
        (13, "name", "is given twice, first in line 1"),
    ]


def test_an_alias_is_read_once(tmp_path: Path) -> None:
    """A part that is used again is no repetition, and one that holds itself does not hang the reader."""
    repeated = VALID.replace("{id: completion, weight: 0.7,", "&part {id: completion, weight: 0.7,") + "bands: *part\n"
    assert "is given twice" not in str(faults_of(tmp_path, repeated))
    assert (1, "name", "Field required") in faults_of(tmp_path, "self: &itself\n  - *itself\n")


def test_all_faults_are_told_at_once_in_the_order_of_their_lines(tmp_path: Path) -> None:
    text = VALID.replace("name: own", "name: two words").replace("{{ALERT_DATA}}", "").replace("weight: 0.3", "w: 1")
    told = [(line, key) for line, key, _ in faults_of(tmp_path, text + "name: again\n")]
    assert told == [(4, "prompt"), (10, "rubric.1.weight"), (11, "rubric.1.w"), (14, "name")]


def test_the_start_is_refused_with_file_and_lines(tmp_path: Path) -> None:
    text = VALID.replace("rubric\n", "rubrik\n").replace("weight: 0.3", "weight: -1")
    (tmp_path / "own.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"own\.yaml, line 2: strategy: .*; line 11: rubric\.1\.weight: "):
        load_criteria([tmp_path])
