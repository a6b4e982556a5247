"""
Pairs of tool names, judged by hand, and every pair that `merge_spellings` is known to decide wrongly.

The wrong decisions are listed in docs/missing-tools.md.
"""

import json
from pathlib import Path

from tarsy_scoring.evaluation.tool_names import merge_spellings

PAIRS = {
    kind: [(one, other) for one, other in pairs]
    for kind, pairs in json.loads(Path(__file__).with_name("tool_pairs.json").read_text(encoding="utf-8")).items()
}
# A builder of tools would make one tool of both names, or two however alike they are written.
SAME, DIFFERENT = PAIRS["one tool"], PAIRS["two tools"]
# A pair left apart costs a merge by hand; a wrong merge hides a missing tool until it is undone.
MISSED, WRONG = set(PAIRS["left apart"]), set(PAIRS["merged wrongly"])


def is_merged(one: str, other: str) -> bool:
    return len(merge_spellings({one: 2, other: 1})) == 1


def test_only_the_known_pairs_are_left_apart() -> None:
    assert {pair for pair in SAME if not is_merged(*pair)} == MISSED


def test_only_the_known_pairs_are_merged_wrongly() -> None:
    assert {pair for pair in DIFFERENT if is_merged(*pair)} == WRONG
