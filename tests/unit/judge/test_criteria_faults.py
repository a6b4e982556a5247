"""Invalid criteria files: all faults are reported at once, each with its key."""

from pathlib import Path

import pytest

from tables import table
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.judge.criteria import load_criteria, read_criteria_file

VALID = Path(__file__).with_suffix(".yaml").read_text("utf-8")


def faults_of(tmp_path: Path, text: str | bytes) -> list[str]:
    """Each fault after the name of the file."""
    file = tmp_path / "own.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigurationError) as refused:
        read_criteria_file(file)
    return [fault.removeprefix(f"{file}: ") for fault in str(refused.value).splitlines()]


def test_a_valid_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(VALID, encoding="utf-8")
    assert read_criteria_file(tmp_path / "own.yaml").name == "own"


@table
def test_a_fault_is_reported_with_its_key(old: str, new: str, key: str, reason: str, *, tmp_path: Path) -> None:
    assert VALID.count(old) == 1
    [fault] = faults_of(tmp_path, VALID.replace(old, new))
    assert fault.startswith(f"{key}: " if key else "")
    assert reason in fault


def test_an_unreadable_file_is_a_fault(tmp_path: Path) -> None:
    for name in ("missing.yaml", "."):
        with pytest.raises(ConfigurationError, match="cannot be read: "):
            read_criteria_file(tmp_path / name)
    for text, reason in (
        (b"name: \xff\n", "can't decode"),
        (VALID + "x: [1", "line 14"),
        ("2026-13-01", "month"),
        ("- 1", "valid dictionary"),
    ):
        assert reason in faults_of(tmp_path, text)[0]


def test_the_start_is_refused_with_every_fault_of_a_file(tmp_path: Path) -> None:
    text = VALID.replace("rubric\n", "rubrik\n").replace("weight: 0.3", "weight: -1")
    (tmp_path / "own.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"own\.yaml: strategy: .*\n.*own\.yaml: rubric\.1\.weight: "):
        load_criteria([tmp_path])
