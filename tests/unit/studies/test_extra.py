"""Without the extra `studies`, its verbs, pages and tasks are not listed."""

import subprocess
import sys

WITHOUT = """
import importlib.util

found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "scipy" else found(name, *rest)

import sys

from tarsy_scoring import cli
from tarsy_scoring.config.studies_extra import load_studies
from tarsy_scoring.web.pages import registry

assert load_studies("loops") is None
assert not {"anchors", "compare", "judge-bench"} & {name for names in cli.HEADINGS.values() for name in names}
assert not any("drift" in repr(page) for page in registry.PAGES)
assert not [name for name in sys.modules if name.startswith(("tarsy_scoring.studies", "scipy", "numpy"))]
"""


def test_nothing_of_the_studies_is_listed_without_the_extra():
    command = [sys.executable, "-c", WITHOUT]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
