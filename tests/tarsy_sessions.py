"""A session in the neutral JSON shape that uses all that TARSy can store: sub-agents, calls, tokens, tools."""

import json
from pathlib import Path
from typing import Any

_SESSION = (Path(__file__).parent / "tarsy_session.json").read_text("utf-8")


def session(session_id: str = "one", **changes: Any) -> dict[str, Any]:
    """The session under this id; the ids of its parts begin with it."""
    found: dict[str, Any] = json.loads(_SESSION.replace("{session_id}", session_id))
    return found | changes
