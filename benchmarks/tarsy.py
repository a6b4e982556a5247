"""
Sessions in the tables of TARSy, for scenarios that read from its database: 131 events, about 98 KB each.

An investigation by two agents, a synthesis and an executive summary, with a row for each call of a tool or a model.
"""

import asyncpg

from benchmarks.sessions import BODIES, make_session, session_name
from tarsy_scoring_lab.tarsy import Row, create_tables, load_session

EVENTS = 131

# Columns that hold an id of the session or of a part of it, in the order in which foreign keys allow the tables.
_IDS = {
    "alert_sessions": ("session_id",),
    "stages": ("session_id", "stage_id", "referenced_stage_id"),
    "agent_executions": ("session_id", "stage_id", "execution_id"),
    "timeline_events": ("session_id", "stage_id", "execution_id", "event_id"),
    "mcp_interactions": ("session_id", "stage_id", "execution_id", "interaction_id"),
    "llm_interactions": ("session_id", "stage_id", "execution_id", "interaction_id"),
}
TABLES = tuple(_IDS)

# The call of a model behind each text that a model wrote first.
_MODEL_CALLS = """
INSERT INTO llm_interactions (interaction_id, created_at, interaction_type, model_name, llm_request, llm_response,
  input_tokens, output_tokens, execution_id, session_id, stage_id)
SELECT event_id || '/model', created_at, 'iteration', 'agent-model-1',
  jsonb_build_object('messages_count', sequence_number, 'iteration', sequence_number / 3),
  jsonb_build_object('text_length', length(content), 'tool_calls_count', 1),
  1000 + 250 * sequence_number, length(content) / 4, execution_id, session_id, stage_id
FROM timeline_events WHERE event_type = 'llm_thinking'
"""

_CLONE = """
INSERT INTO {table}
SELECT clone.* FROM unnest($1::text[], $2::text[]) AS wanted(template, id)
JOIN {table} AS row ON row.session_id = wanted.template,
LATERAL jsonb_populate_record(row, jsonb_build_object({ids})) AS clone
"""


async def fill(url: str, count: int) -> None:
    """
    Write `count` sessions into TARSy's tables, which are created: `BODIES` different ones, and clones of them.

    Args:
        url: An empty database.
    """
    await create_tables(url)
    names = [session_name(n) for n in range(count)]
    connection = await asyncpg.connect(url, timeout=30)
    try:
        for seed, name in enumerate(names[:BODIES]):
            await load_session(connection, make_tarsy_session(name, seed))
        await connection.execute(_MODEL_CALLS)
        clones = names[BODIES:]
        templates = [names[n % BODIES] for n in range(BODIES, count)]
        for table, columns in _IDS.items():
            ids = ", ".join(f"'{c}', replace(row.{c}, wanted.template, wanted.id)" for c in columns)
            await connection.execute(_CLONE.format(table=table, ids=ids), templates, clones)
        await connection.execute("VACUUM (ANALYZE)")  # so that autovacuum does not begin during a measurement
    finally:
        await connection.close()


def make_tarsy_session(session_id: str, seed: int) -> Row:
    """One session in the neutral JSON shape; its parts have ids that begin with its own."""
    session = make_session(session_id, seed)
    [found] = session["stages"][0]["executions"]
    *worked, concluded = found["events"]
    halves = worked[: len(worked) // 2], worked[len(worked) // 2 :]
    thought = worked[0] | {"content": "The findings of both agents agree on the order of events."}
    final = concluded | {"content": concluded["content"][:600]}
    agents = [[*_with_responses(half), *_with_responses([thought]), concluded] for half in halves]
    investigation = [
        _execution(f"{session_id}/a{n}", f"kubernetes-agent-{n}", n, events) for n, events in enumerate(agents, 1)
    ]
    synthesis = _execution(f"{session_id}/s", "SynthesisAgent", 1, [*_with_responses([thought]), final])
    summary = _execution(f"{session_id}/e", "ExecSummaryAgent", 1, [thought, final])
    stages = [
        _stage(session_id, 1, "investigation", investigation) | {"parallel_type": "multi_agent"},
        _stage(session_id, 2, "synthesis", [synthesis]) | {"referenced_stage_id": f"{session_id}/1"},
        _stage(session_id, 3, "exec_summary", [summary]),
    ]
    return session | {"stages": stages, "executive_summary": final["content"]}


def _with_responses(events: list[Row]) -> list[Row]:
    """These events with a short text of the agent after each thought."""
    spoken = []
    for event in events:
        spoken.append(event)
        if event["event_type"] == "llm_thinking":
            text = "Next I compare both parts."
            spoken.append(event | {"event_type": "llm_response", "content": text})
    return spoken


def _execution(execution_id: str, agent: str, index: int, events: list[Row]) -> Row:
    numbered = [e | {"event_id": f"{execution_id}/{n}", "sequence_number": n} for n, e in enumerate(events, 1)]
    return {
        "execution_id": execution_id,
        "agent_name": agent,
        "agent_index": index,
        "status": "completed",
        "llm_provider": "scripted",
        "model_name": "agent-model-1",
        "events": numbered,
    }


def _stage(session_id: str, index: int, kind: str, executions: list[Row]) -> Row:
    return {
        "stage_id": f"{session_id}/{index}",
        "stage_name": kind,
        "stage_index": index,
        "stage_type": kind,
        "status": "completed",
        "executions": executions,
    }
