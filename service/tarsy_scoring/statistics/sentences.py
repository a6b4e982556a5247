"""
The sentences that explain results in words.

The texts are in `sentences.yaml`, apart from the code that decides which of them hold.
"""

from functools import cache
from importlib import resources

import yaml


@cache
def _texts() -> dict[str, str]:
    texts: dict[str, str] = yaml.safe_load(resources.files(__package__).joinpath("sentences.yaml").read_bytes())
    return texts


def sentence(name: str, **values: object) -> str:
    """
    The sentence of this name with its values.

    Raises:
        KeyError: There is no such sentence, or one of its values is missing.
    """
    return _texts()[name].format(**values)
