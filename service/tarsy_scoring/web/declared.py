"""
What a request may say: what the OpenAPI document declares for its address, and all but lists once.

What nobody knows, or what is said twice, would be passed over in silence and something else answered than was asked.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

from fastapi import Request
from fastapi.exceptions import RequestValidationError

IDEMPOTENCY_KEY = "Idempotency-Key"
TWICE = "it is said more than once: say it once"


async def as_declared(request: Request) -> None:
    """
    For `Depends` of every route of `/api/v1/scoring`.

    Raises:
        RequestValidationError: There is no such parameter, one that is no list or a name in the JSON of the body is
            there twice, or the query is no UTF-8.
    """
    operation = request.app.openapi()["paths"][request.scope["route"].path_format][request.method.lower()]
    declared = {p["name"]: p["schema"].get("type") for p in operation.get("parameters", []) if p["in"] == "query"}
    faults = [*_faults_of_query(request.scope["query_string"], declared)]
    if "requestBody" in operation:
        faults += _faults_of_body(await request.body())
    if faults:
        raise RequestValidationError(faults)


def with_one_key(request: Request) -> None:
    """For `Depends` of what takes an `Idempotency-Key`. Raises: RequestValidationError: There are several."""
    if len(request.headers.getlist(IDEMPOTENCY_KEY)) > 1:
        raise RequestValidationError([_fault(TWICE, "header", IDEMPOTENCY_KEY)])


def read_query(query: bytes) -> list[tuple[str, str]]:
    """Names and values of a query. Raises: ValueError: It is no UTF-8, as %XX."""
    return parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict")


def _faults_of_query(query: bytes, declared: Mapping[str, str | None]) -> Iterator[dict[str, Any]]:
    try:
        given = Counter(name for name, _ in read_query(query))
    except ValueError:
        yield _fault("it cannot be read as UTF-8 written as %XX", "query")
        return
    for name, times in given.items():
        if name not in declared:
            yield _fault("there is no such parameter", "query", name)
        elif times > 1 and declared[name] != "array":
            yield _fault(TWICE, "query", name)


def _faults_of_body(body: bytes) -> list[dict[str, Any]]:
    """Names that are in an object twice, of which a reader takes the last; what is no JSON is told elsewhere."""
    twice: list[str] = []

    def look(pairs: Sequence[tuple[str, Any]]) -> None:
        twice.extend(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)

    try:
        json.loads(body, object_pairs_hook=look)
    except (ValueError, RecursionError):
        return []
    return [_fault(TWICE, "body", name) for name in twice]


def _fault(msg: str, *loc: str) -> dict[str, Any]:
    return {"type": "not_declared", "loc": loc, "msg": msg}
