"""
An MCP server on standard input and output with one tool, which TARSy's server starts for its agents.

Needs the standard library alone, so that it starts quickly: TARSy starts one for each agent.
"""

import json
import sys
from typing import Any

TOOL = {
    "name": "describe-pod",
    "description": "Describe a pod.",
    "inputSchema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
}
RESULT = "checkout-7 0/1 OOMKilled 12 restarts"


def answer(message: dict[str, Any]) -> dict[str, Any]:
    """The result of one request; a method that is not listed here has an empty one."""
    match message["method"]:
        case "initialize":
            return {
                "protocolVersion": message["params"]["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "pods", "version": "1"},
            }
        case "tools/list":
            return {"tools": [TOOL]}
        case "tools/call":
            return {"content": [{"type": "text", "text": RESULT}]}
    return {}


if __name__ == "__main__":
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:  # a notification has none, and no answer
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": answer(message)}) + "\n")
            sys.stdout.flush()
