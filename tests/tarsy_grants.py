"""The SQL of `docs/bridge.md`, which tests run as it stands there, so that the documented grants are enough."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "bridge.md"
READER, WRITER = "scoring_reader", "scoring_writer"


def blocks_of_sql() -> tuple[str, str, str, str]:
    """The statements that create both roles, those that grant, and the grants for a bridge alone and for memory."""
    roles, grants, bridge_alone, memory = re.findall(
        r"^```sql\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    return roles, grants, bridge_alone, memory


def grants_to(name: str, role: str, block: str | None = None) -> str:
    """The statements that grant to `name`, one of the documented roles, for `role` in its place."""
    lines = (block or blocks_of_sql()[1]).splitlines()
    return "\n".join(re.sub(r" TO [^;]+", f" TO {role}", line) for line in lines if name in line)
