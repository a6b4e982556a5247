"""What a request may say: what is declared, and all but lists once; whatever else is refused and not passed over."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, Query
from pydantic import BaseModel

from api_site import open_api
from tarsy_scoring.web.declared import as_declared, with_one_key
from tarsy_scoring.web.problems import tell_problems

JSON = {"Content-Type": "application/json"}


class Wanted(BaseModel):
    number: int = 0
    more: dict[str, int] = {}


class Looked(BaseModel):
    low: int | None = None
    label: list[str] = []


router = APIRouter(prefix="/things")


@router.get("")
async def look(query: Annotated[Looked, Query()]) -> Looked:
    return query


@router.get("/{name}")
async def read(name: str, limit: int = 5) -> dict[str, Any]:
    return {"name": name, "limit": limit}


@router.post("", dependencies=[Depends(with_one_key)])
async def make(wanted: Wanted | None = None) -> Wanted | None:
    return wanted


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    app.include_router(router, dependencies=[Depends(as_declared)])
    tell_problems(app)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        yield client


def faults(answer: httpx.Response) -> list[tuple[list[Any], str]]:
    """Where and why, of a refusal."""
    assert answer.status_code == 422, answer.text
    return [(fault["loc"], fault["msg"]) for fault in answer.json()["errors"]]


@pytest.mark.parametrize(
    ("address", "where"),
    [
        pytest.param("/things?high=1", [["query", "high"]], id="unknown-beside-a-model"),
        pytest.param("/things/a?low=1", [["query", "low"]], id="unknown-beside-a-parameter"),
        pytest.param("/things?%3Cb%3E=1&other=", [["query", "?"], ["query", "other"]], id="several"),
        pytest.param("/things?low=85&low=0", [["query", "low"]], id="twice"),
        pytest.param("/things/a?limit=1&limit=1", [["query", "limit"]], id="twice-the-same"),
        pytest.param("/things?label=%FF", [["query"]], id="no-utf-8"),
        pytest.param("/things/a?%FF=1", [["query"]], id="a-name-that-is-no-utf-8"),
    ],
)
async def test_a_query_that_would_be_passed_over(client: httpx.AsyncClient, address: str, where: list[Any]) -> None:
    """A filter that nobody looks at would show more than was asked for, as if that were all."""
    assert [loc for loc, _ in faults(await client.get(address))] == where


@pytest.mark.parametrize(
    ("address", "answer"),
    [
        pytest.param("/things", {"low": None, "label": []}, id="nothing"),
        pytest.param("/things?low=1&label=a&label=b", {"low": 1, "label": ["a", "b"]}, id="a-list"),
        pytest.param("/things?label=%C3%A4%26low", {"low": None, "label": ["\u00e4&low"]}, id="utf-8"),
        pytest.param("/things/a?limit=3", {"name": "a", "limit": 3}, id="a-parameter"),
    ],
)
async def test_a_query_as_it_is_declared(client: httpx.AsyncClient, address: str, answer: Any) -> None:
    """What is known, and said once or is a list, is taken."""
    assert (await client.get(address)).json() == answer


@pytest.mark.parametrize(
    ("body", "where"),
    [
        pytest.param('{"number": 1, "number": 2}', [["body", "number"]], id="on-top"),
        pytest.param('{"more": {"a": 1, "b": 2, "a": 1}}', [["body", "a"]], id="inside"),
        pytest.param('{"number": 1, "more": {"number": 1}}', [], id="in-different-objects"),
    ],
)
async def test_a_name_that_is_in_an_object_twice(client: httpx.AsyncClient, body: str, where: list[Any]) -> None:
    """Readers take the one or the other, so nobody knows which was meant."""
    answer = await client.post("/things", content=body, headers=JSON)

    assert ([loc for loc, _ in faults(answer)] if where else answer.status_code) == (where or 200)


async def test_json_that_is_not_said_to_be(client: httpx.AsyncClient) -> None:
    """What would help is told: so do command lines that send forms unless they are told otherwise."""
    answer = await client.post("/things", data={"number": "1"})

    assert faults(answer) == [(["body"], "it must be JSON, and be said to be: send Content-Type: application/json")]


async def test_text_behind_the_json(client: httpx.AsyncClient) -> None:
    """Where it begins is told, and nothing of it."""
    answer = await client.post("/things", content='{"number": 1} planted', headers=JSON)

    assert faults(answer) == [(["body", 14], "from character 14 on it is no JSON: Extra data")]
    assert "planted" not in answer.text


async def test_two_keys(client: httpx.AsyncClient) -> None:
    """Of two nobody knows which one counts."""
    keys = [("Idempotency-Key", "one"), ("Idempotency-Key", "two")]

    assert [loc for loc, _ in faults(await client.post("/things", headers=keys))] == [["header", "Idempotency-Key"]]
    assert (await client.post("/things", headers=keys[:1])).status_code == 200


async def test_every_address_of_ours_is_looked_at_so() -> None:
    """Of the API alone: pages say it in their own way, and TARSy's spelling passes over what TARSy does."""
    async with open_api("postgresql://nobody@127.0.0.1:9/none") as api:
        document = (await api.client.get("/openapi.json")).json()
        paths = [path for path, operations in document["paths"].items() if "get" in operations]
        answers = {path: await api.client.get(path, params={"no_such": 1}) for path in paths}

    ours = {path for path in paths if path.startswith("/api/v1/scoring/")}
    assert len(ours) > 10
    for path, answer in answers.items():
        told = answer.json().get("errors") if "json" in answer.headers["content-type"] else None
        assert ([fault["loc"] for fault in told or []] == [["query", "no_such"]]) == (path in ours), path
