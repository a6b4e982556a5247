"""
Fills in the sentences that explain results in words.

The texts are in `sentences.yaml`; the code that decides which of them hold is with each result.
"""

from tarsy_scoring.config.packaged import packaged_yaml


def sentence(name: str, **values: object) -> str:
    """
    The sentence of this name with its values.

    Raises:
        KeyError: There is no such sentence, or one of its values is missing.
    """
    text: str = packaged_yaml(__package__, "sentences.yaml")[name]
    return text.format(**values)
