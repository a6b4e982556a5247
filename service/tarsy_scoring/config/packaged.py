"""Reads the YAML files that are installed beside modules: texts, rules and declarations."""

from functools import cache
from importlib import resources
from typing import Any

import yaml


@cache
def packaged_yaml(package: str, name: str) -> Any:
    """The value in the YAML file of this name beside the modules of a package; read once per process."""
    text = resources.files(package).joinpath(name).read_text("utf-8")
    # The loader in C is ten times as fast as the one in Python. PyYAML built without libyaml lacks it.
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506  # both are safe
