"""
Generated requests: every answer of the API conforms to its OpenAPI document.

`API_SCHEMA_EXAMPLES` sets the number of examples for each operation.
"""

import os
import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from builders import DEFAULT_CRITERIA, completion, failure, open_scoring, rescore, step
from infrastructure import Postgres, fresh_database, run_apart, wait_until
from processes import Process
from tarsy_scoring.events import SESSION_ID_PATTERN
from tarsy_scoring.judge.criteria import load_criteria
from tarsy_scoring.judge.verdict import MissingTool
from tarsy_scoring.web.app import application

pytestmark = pytest.mark.slow

EXAMPLES = int(os.environ.get("API_SCHEMA_EXAMPLES", "10"))
SESSIONS = ("generated-1", "generated-2", "generated-3")
KNOWN: dict[str, list[str]] = {
    "session_id": list(SESSIONS),
    "event_id": [f"event-{name}" for name in SESSIONS],
    "criteria_hash": [c.criteria_hash for c in load_criteria() if c.name == DEFAULT_CRITERIA],
    "score_id": [],
}
GOOD = {
    "session_id": SESSION_ID_PATTERN,
    "event_id": r"[^\x00]{1,255}",
    "criteria_hash": r"[A-Za-z0-9_-]{1,255}",
    "score_id": r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
}
# The schema cannot say that the API must have issued a cursor, nor that a label may have only one value.
BEYOND_SCHEMA = {"cursor", "label"}
schema = schemathesis.openapi.from_dict(application().openapi())


@schema.hook
def map_path_parameters(_context: Any, path_parameters: dict[str, Any] | None) -> dict[str, Any] | None:
    """Replace half of the valid ids by known ones: made-up ids alone would only give 404."""
    for name, made_up in (path_parameters or {}).items():
        spread = zlib.crc32(repr(made_up).encode())
        if KNOWN.get(name) and spread % 2 and re.fullmatch(GOOD[name], str(made_up)):
            path_parameters[name] = KNOWN[name][spread // 2 % len(KNOWN[name])]  # type: ignore[index]
    return path_parameters


async def fill(database_url: str) -> list[str]:
    """Store a completed score with all its parts, a failed and a pending one; returns their ids."""
    async with open_scoring(database_url) as scoring:
        await scoring.accept(*(rescore(name, event_id=f"event-{name}") for name in SESSIONS))
        completed, failed = await scoring.claim(2)
        await scoring.store.record(step(completed, "analyzing_methodology", 1))
        tools = [MissingTool("node_pressure", "shows whether the node ran out of memory")]
        await scoring.store.end(completion(completed, missing_tools=tools, failure_tags=["incomplete_evidence"]))
        await scoring.store.end(failure(failed))
        return [str(row["score_id"]) for row in await scoring.rows("SELECT score_id FROM session_scores")]


@pytest.fixture(scope="module")
def address(postgres: Postgres, _migrated_template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of `tarsy-scoring api` over a database with a few scores."""
    folder: Path = tmp_path_factory.mktemp("api")
    with fresh_database(postgres, _migrated_template) as url:
        KNOWN["score_id"] = run_apart(fill(url))
        env = {k: v for k, v in os.environ.items() if not k.startswith(("SCORING_", "OPENAI_"))}
        env |= {"SCORING_DATABASE_URL": url, "SCORING_API_PORT": "0", "SCORING_API_RATE_PER_MINUTE": "1000000"}
        env |= {"SCORING_LOG_FORMAT": "json", "SCORING_METRICS_PORT": "0"}
        process = Process([sys.executable, "-m", "tarsy_scoring", "api"], env, folder, "api")
        try:
            listening = run_apart(process.says("api.listening", 30))["address"]
            run_apart(wait_until(lambda: _is_ready(listening), 30, "the API is ready"))
            yield listening
            assert process.lines("api.failed") == []
        finally:
            run_apart(process.kill())


def _is_ready(address: str) -> bool:
    return httpx.get(f"{address}/readyz").status_code == 200


@schema.parametrize()
@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_every_answer_conforms_to_the_document(case: schemathesis.Case, address: str) -> None:
    response = case.call(base_url=address)
    excluded = [positive_data_acceptance] if _is_of_meaning(response) else []
    if response.status_code == 431:  # a valid refusal that the check does not know
        excluded = [positive_data_acceptance, negative_data_rejection]
    case.validate_response(response, excluded_checks=excluded)


def _is_of_meaning(response: schemathesis.Response) -> bool:
    """
    Whether the refusal concerns a rule that no schema can express.

    Such are problems of their own kind (unknown criteria, a key used before), parameters that contradict each
    other, and the parameters of `BEYOND_SCHEMA`.
    """
    if response.status_code not in (400, 422):
        return False
    document = response.json()
    if document.get("title") != "Malformed request":
        return True
    faults = document.get("errors", [])
    return all(len(fault["loc"]) == 1 or fault["loc"][-1] in BEYOND_SCHEMA for fault in faults)
