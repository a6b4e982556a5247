"""Contradictory or incomplete values: the chart refuses them with a sentence that says what to change."""

import json
import re
from pathlib import Path

from deploying import CHART, MINIMAL, Render

REFUSED = json.loads(Path(__file__).with_suffix(".json").read_text())


def test_contradictory_values_are_refused_with_a_sentence(helm: Render) -> None:
    for case, (values, sentence) in REFUSED.items():
        done = helm("template", "scoring", str(CHART), *MINIMAL, *(f"--set={v}" for v in values), check=False)
        assert done.returncode != 0, case
        assert re.search(sentence, done.stderr), (case, done.stderr)
