"""Invalid criteria files: all faults are reported at once, each with its line."""

from pathlib import Path

import pytest

from tables import table
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


@table
def test_a_fault_is_reported_with_the_line_of_its_key(
    old: str, new: str, line: int, key: str, reason: str, *, tmp_path: Path
) -> None:
    assert VALID.count(old) == 1
    [(found_line, found_key, found_reason)] = faults_of(tmp_path, VALID.replace(old, new))
    assert (found_line, found_key) == (line, key)
    assert reason in found_reason


def test_an_unreadable_file_is_a_fault(tmp_path: Path) -> None:
    for name in ("missing.yaml", "."):
        with pytest.raises(InvalidCriteria, match="cannot be read: "):
            read_criteria_file(tmp_path / name)
    assert [reason for _, _, reason in faults_of(tmp_path, b"name: \xff\n")] == ["cannot be read: it is not UTF-8"]


def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    text = VALID.replace("pass_threshold", "name: other\npass_threshold").replace("id: completion", "id: a, id: b")
    assert faults_of(tmp_path, text) == [
        (9, "rubric.0.id", "is given twice, first in line 9"),
        (13, "name", "is given twice, first in line 1"),
    ]


def test_all_faults_are_reported_at_once_in_the_order_of_their_lines(tmp_path: Path) -> None:
    text = VALID.replace("name: own", "name: two words").replace("{{ALERT_DATA}}", "").replace("weight: 0.3", "w: 1")
    found = [(line, key) for line, key, _ in faults_of(tmp_path, text + "name: again\n")]
    assert found == [(4, "prompt"), (10, "rubric.1.weight"), (11, "rubric.1.w"), (14, "name")]


def test_the_start_is_refused_with_file_and_lines(tmp_path: Path) -> None:
    text = VALID.replace("rubric\n", "rubrik\n").replace("weight: 0.3", "weight: -1")
    (tmp_path / "own.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"own\.yaml, line 2: strategy: .*; line 11: rubric\.1\.weight: "):
        load_criteria([tmp_path])
