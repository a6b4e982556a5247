"""Reads the YAML files that are installed beside modules: texts, rules and declarations."""

from functools import cache
from importlib import resources
from typing import Any

import yaml

# The loader in C is ten times as fast as the one in Python. PyYAML built without libyaml lacks it.
FAST_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@cache
def packaged_yaml(package: str, name: str) -> Any:
    """The value in the YAML file of this name beside the modules of a package; read once per process."""
    text = resources.files(package).joinpath(name).read_text("utf-8")
    return yaml.load(text, FAST_LOADER)  # noqa: S506  # it is a safe one
