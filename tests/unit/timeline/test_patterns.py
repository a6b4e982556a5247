"""Patterns that are compiled at their first use."""

import gc

from tarsy_scoring.timeline.clean import harmless, sanitizer
from tarsy_scoring.timeline.clean.patterns import BytesPattern, compile_bytes


def test_every_shipped_pattern_compiles() -> None:
    """A pattern that few sessions need would otherwise fail a score in production."""
    assert sanitizer.__name__  # imports all rules, but for these
    assert [harmless.reasons_of(group) for group in harmless.REASONS]
    shipped = [found for found in gc.get_objects() if isinstance(found, BytesPattern)]

    assert len(shipped) > 150
    for pattern in shipped:
        assert pattern.compiled


def test_a_pattern_is_compiled_at_its_first_use() -> None:
    pattern = compile_bytes("(a)b")

    assert "compiled" not in vars(pattern)
    assert pattern.sub(rb"\1", b"xab") == b"xa"
    assert pattern.search(b"xab") is not None
    assert vars(pattern)["search"] == pattern.compiled.search
