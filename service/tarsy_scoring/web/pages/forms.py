"""
What somebody sends with a form of a page, or in the address of one: its fields, and what they say.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, TypeVar
from urllib.parse import parse_qs, parse_qsl

from pydantic import BaseModel, ValidationError

from tarsy_scoring.web.problems import Problem

T = TypeVar("T", bound=BaseModel)

MAX_FIELDS = 20
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def faults_of_address(query: bytes, known: Collection[str]) -> list[str]:
    """
    What an address asks for that its page would pass over, and so show more than was asked for. Pure.

    Args:
        query: As it came.
        known: The fields that the page knows; of each one is looked at.
    """
    try:
        given = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict")
    except ValueError:
        return ["address: what stands behind its ? cannot be read"]
    times = Counter(name for name, _ in given)
    faults = [f"{name}: it stands in the address more than once" for name in known if times[name] > 1]
    if unknown := {name for name, value in given if value and name not in known}:
        names = ", ".join(sorted(name for name in unknown if _PLAIN_NAME.fullmatch(name))) or "a field of the address"
        faults.append(f"{names}: this page knows no such field; those it knows are in the form")
    return faults


def form_fields(body: bytes) -> dict[str, str]:
    """
    The fields of a form, of those with one name the last; one that was left empty is not in it. Pure.

    Raises:
        Problem: 422, it is none of ours.
    """
    try:
        given = parse_qs(body.decode("ascii"), max_num_fields=MAX_FIELDS)
    except ValueError as error:
        raise Problem(422, "Malformed request", "the form cannot be read: reload its page and try again") from error
    return {name: values[-1] for name, values in given.items()}


def read_as(kind: type[T], said: Mapping[str, Any]) -> T:
    """
    What a form says, as the API takes it. Pure.

    Raises:
        Problem: 422, with the field that is wrong and not with what it holds.
    """
    try:
        return kind.model_validate(said)
    except ValidationError as error:
        fault = error.errors(include_input=False, include_url=False)[0]
        where = "".join(f"`{part}`: " for part in fault["loc"])
        raise Problem(422, "Malformed request", where + str(fault["msg"]).removeprefix("Value error, ")) from None
