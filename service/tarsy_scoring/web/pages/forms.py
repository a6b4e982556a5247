"""Forms that pages send with POST, and the chain names that they suggest."""

from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import parse_qs

from pydantic import BaseModel, ValidationError

from tarsy_scoring.scores.session_list import chains_of_sessions
from tarsy_scoring.web.context import AppContext
from tarsy_scoring.web.edge.problems import Problem

T = TypeVar("T", bound=BaseModel)

MAX_FIELDS = 20
MAX_SUGGESTED = 100  # stored chains; events may name any number


def unreadable() -> Problem:
    """422 for a form that no page sends."""
    return Problem(422, "Malformed request", "the form cannot be read: reload its page and try again")


def form_fields(body: bytes) -> dict[str, str]:
    """
    Read the non-empty fields. If a field is repeated, the last value counts.

    Raises:
        Problem: 422, the body is not a form, or has more than `MAX_FIELDS` fields.
    """
    try:
        given = parse_qs(body.decode("ascii"), max_num_fields=MAX_FIELDS)
    except ValueError as error:
        raise unreadable() from error
    return {name: values[-1] for name, values in given.items()}


def read_as(model: type[T], fields: Mapping[str, Any]) -> T:
    """
    Validate form fields with a model from the API.

    Raises:
        Problem: 422 for the first wrong field, without quoting the value.
    """
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        fault = error.errors(include_input=False, include_url=False)[0]
        where = "".join(f"`{part}`: " for part in fault["loc"])
        raise Problem(
            422, "Malformed request", where + str(fault["msg"]).removeprefix("Value error, ")
        ) from None


async def chain_names(context: AppContext) -> list[str]:
    """
    Names to suggest, sorted: configured chains, and those that stored sessions have.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    stored = await chains_of_sessions(context.reader.database, MAX_SUGGESTED)
    return sorted({*context.settings.config.chains, *stored})
