"""Criteria files: which are accepted, how the others are refused, and what the criteria hash covers."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tables import table
from tarsy_scoring.config.chains import ChainSettings, Config
from tarsy_scoring.errors import ConfigurationError, UnknownCriteria
from tarsy_scoring.judge import criteria as criteria_module
from tarsy_scoring.judge.criteria import Criteria, load_criteria
from tarsy_scoring.judge.strategies import two_turn

PROMPT = "{{ALERT_DATA}} then {{SESSION_CONVERSATION}} then {{OUTPUT_SCHEMA}}"
MINIMAL: dict[str, Any] = {
    "name": "own",
    "strategy": "two_turn",
    "system_prompt": "Judge.",
    "prompt": PROMPT,
    "follow_up_prompt": "Name the tools.",
    "reminder_prompt": "The total alone.",
}
RUBRIC: dict[str, Any] = {
    "name": "cli",
    "strategy": "rubric",
    "system_prompt": "Judge.",
    "prompt": PROMPT,
    "rubric": [
        {"id": "efficiency", "weight": 0.3, "description": "Few calls."},
        {"id": "completion", "weight": 0.7, "description": "It was done."},
    ],
    "pass_threshold": 0.7,
}


def write(folder: Path, file: str, content: dict[str, Any] | str) -> Path:
    folder.mkdir(exist_ok=True)
    text = content if isinstance(content, str) else yaml.safe_dump(content)
    (folder / file).write_text(text, encoding="utf-8")
    return folder


def test_shipped_criteria_need_no_configuration() -> None:
    assert "investigation-methodology" in load_criteria()
    assert load_criteria().get("investigation-methodology").strategy == "two_turn"


def test_an_operators_file_stands_beside_the_shipped_ones(tmp_path: Path) -> None:
    """Own criteria are found by their name; both spellings of the suffix count, other files do not."""
    write(tmp_path, "any-file-name.yaml", MINIMAL)
    write(tmp_path, "second.yml", MINIMAL | {"name": "second"})
    write(tmp_path, "README.md", "not criteria")
    write(tmp_path, ".hidden.yaml", "not: criteria")
    shipped = [c.name for c in load_criteria()]
    assert [c.name for c in load_criteria([tmp_path, tmp_path])] == sorted([*shipped, "own", "second"])


def test_an_operators_file_replaces_a_shipped_one_with_its_name(tmp_path: Path) -> None:
    write(tmp_path, "mine.yaml", MINIMAL | {"name": "investigation-methodology"})
    assert load_criteria([tmp_path]).get("investigation-methodology").system_prompt == "Judge."


def test_two_operators_files_with_one_name_are_refused(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a", "one.yaml", MINIMAL), write(tmp_path / "b", "two.yaml", MINIMAL)
    with pytest.raises(ConfigurationError, match=r"two\.yaml: the name 'own' is taken by .*one\.yaml"):
        load_criteria([first, second])


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="missing is not a folder"):
        load_criteria([tmp_path / "missing"])


@table
def test_an_invalid_file_is_refused_with_its_name(
    base: str, changes: dict[str, Any], message: str, *, tmp_path: Path
) -> None:
    content = {"minimal": MINIMAL, "rubric": RUBRIC}[base] | changes
    write(tmp_path, "own.yaml", content)
    with pytest.raises(ConfigurationError, match=message) as refused:
        load_criteria([tmp_path])
    assert "own.yaml" in str(refused.value)


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(UnknownCriteria, match="did you mean 'investigation-methodology'"):
        load_criteria().get("investigation-metodology")


def test_removed_criteria_are_refused_with_their_successor() -> None:
    with pytest.raises(UnknownCriteria, match=r"they were removed, use 'investigation'$"):
        load_criteria().get("investigation-outcome")


def test_a_file_includes_parts_and_is_refused_with_an_unknown_one(tmp_path: Path) -> None:
    """The hash is that of the text, whether a file includes it or holds it."""
    ends = "The evidence ends here."
    write(tmp_path, "own.yaml", MINIMAL | {"prompt": f"{PROMPT}\n{{{{part:evidence_ends}}}}"})
    included = load_criteria([tmp_path]).get("own")
    assert ends in included.prompt
    write(tmp_path, "own.yaml", MINIMAL | {"prompt": included.prompt})
    assert load_criteria([tmp_path]).get("own").criteria_hash == included.criteria_hash

    write(tmp_path, "own.yaml", MINIMAL | {"prompt": f"{PROMPT}\n{{{{part:evidence_end}}}}"})
    with pytest.raises(
        ConfigurationError, match=r"own\.yaml: no such part as 'evidence_end'; did you mean 'evidence_ends'"
    ):
        load_criteria([tmp_path])


def test_the_layout_of_a_file_does_not_change_the_hash() -> None:
    other = dict(reversed(list(MINIMAL.items()))) | {"prompt": f"\n{PROMPT}\n\n", "categories": [], "bands": {}}
    assert Criteria.model_validate(other).criteria_hash == Criteria.model_validate(MINIMAL).criteria_hash


@table
def test_each_key_changes_the_hash(change: dict[str, Any]) -> None:
    assert Criteria.model_validate(MINIMAL | change).criteria_hash != Criteria.model_validate(MINIMAL).criteria_hash


@pytest.mark.parametrize("added", ["FENCE_NOTICE", "output_schema", "REPAIR_PROMPT"])
def test_texts_added_by_code_change_the_hash(added: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Criteria.model_validate(MINIMAL).criteria_hash
    owner = criteria_module if added == "FENCE_NOTICE" else two_turn
    monkeypatch.setattr(owner, added, (lambda max_points, bands: "else") if added == "output_schema" else "else")
    assert Criteria.model_validate(MINIMAL).criteria_hash != before


def test_stored_content_is_complete_and_has_a_hash_per_prompt() -> None:
    """It is enough to ask the same again, and to see which prompt changed."""
    criteria = Criteria.model_validate(MINIMAL | {"bands": {"correct": [60, 100]}})
    prompts = {"system_prompt", "prompt", "follow_up_prompt", "reminder_prompt"}
    added = {"fence_notice", "output_schema", "repair_prompt"}
    assert criteria.content["bands"] == {"correct": [60, 100]}
    assert criteria.content["prompt"] == PROMPT
    assert set(criteria.content["added_by_code"]) == added
    assert set(criteria.content["prompt_hashes"]) == prompts | added
    assert all(len(digest) == 64 for digest in criteria.content["prompt_hashes"].values())


def test_the_conversation_opens_with_the_system_prompt_and_the_fence_notice() -> None:
    system, user = Criteria.model_validate(MINIMAL).open_conversation(SimpleNamespace(alert="A", conversation="C"))
    assert (system.role, user.role) == ("system", "user")
    assert system.content == f"Judge.\n\n{criteria_module.FENCE_NOTICE}"
    assert user.content.startswith("A then C then Answer in this order.")


def test_the_notes_of_a_chain_are_read_with_its_criteria_and_part_of_their_hash() -> None:
    """They stand between the rules and the fence notice, and tokens are reserved for them."""
    registry = load_criteria()
    plain, noted = ChainSettings(), ChainSettings(criteria_notes="Batches run at night.\n")
    criteria, with_notes = registry.of_chain(plain), registry.of_chain(noted)
    system, _ = with_notes.open_conversation(SimpleNamespace(alert="A", conversation="C"))
    rules, notes = system.content.split("# About these investigations")
    assert rules.strip() == criteria.system_prompt
    assert notes.endswith(f"Batches run at night.\n\n{criteria_module.FENCE_NOTICE}")
    assert (with_notes.name, criteria) == (criteria.name, registry.get("investigation"))
    assert with_notes.criteria_hash != criteria.criteria_hash
    assert with_notes.content["notes"] == "Batches run at night."
    assert with_notes.opening_tokens > criteria.opening_tokens
    assert registry.of_chain(noted, "cli-tool-use").content["notes"] == "Batches run at night."
    assert [c.criteria_hash for c in registry.in_use(Config(defaults=plain, chains={"k": noted}))] == [
        registry.of_chain(chain, c.name).criteria_hash for chain in (plain, noted) for c in registry
    ]


def test_what_a_total_means_is_no_part_of_the_hash() -> None:
    before = Criteria.model_validate(MINIMAL)
    assert Criteria.model_validate(MINIMAL | {"meaning": "Whether it is right."}).criteria_hash == before.criteria_hash


def test_session_text_that_looks_like_a_placeholder_stays_as_it_is() -> None:
    """Placeholders are filled in one pass over the template; back-references have no effect."""
    hostile = SimpleNamespace(
        alert=r"{{SESSION_CONVERSATION}} \1 \g<0>", conversation="{{OUTPUT_SCHEMA}} {{ALERT_DATA}}"
    )
    user = Criteria.model_validate(MINIMAL).open_conversation(hostile)[1]
    assert user.content.startswith(rf"{hostile.alert} then {hostile.conversation} then Answer")


def test_the_output_form_lists_the_categories_and_ends_with_the_total() -> None:
    criteria = Criteria.model_validate(
        MINIMAL | {"categories": [{"id": "logical_flow", "max_points": 60}, {"id": "consistency", "max_points": 40}]}
    )
    schema = criteria.added_by_code["output_schema"]
    assert "at least 200 words" in schema
    assert "Logical Flow: X/60\n   Consistency: X/40" in schema
    assert schema.index("Consistency: X/40") < schema.index("total alone on the last line")
