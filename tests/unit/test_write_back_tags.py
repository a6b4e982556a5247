"""Failure tags on their way into TARSy's table."""

import pytest

from tarsy_scoring.tarsy.write_back import tags_column


@pytest.mark.parametrize(
    ("tags", "written"),
    [
        pytest.param(["wrong_conclusion"], '["wrong_conclusion"]', id="strings"),
        pytest.param([], "[]", id="none-found"),
        pytest.param({"a": 1}, None, id="object"),
        pytest.param([1], None, id="numbers"),
        pytest.param("x", None, id="string"),
        pytest.param(None, None, id="null"),
    ],
)
def testtags_column_of_another_shape_are_null(tags: object, written: str | None) -> None:
    """TARSy cannot read a list of sessions in which one row has them."""
    assert tags_column(tags) == written
