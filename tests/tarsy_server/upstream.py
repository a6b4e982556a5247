"""Upstream's server as a program: its configuration, its environment and its answers."""

import sys
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import tool_server

from infrastructure import wait_until
from processes import ANSWER_S, PATIENCE_S, Process

ALERT_TYPE, CHAIN = "PodRestarting", "pods"
FAILS = "the provider refuses this alert"

CONFIGURATION = {
    "mcp_servers": {
        name: {"transport": {"type": "stdio", "command": sys.executable, "args": ["-IS", tool_server.__file__]}}
        for name in ("pods", "kubernetes-server")  # the built-in agents require the second
    },
    "agents": {"Investigator": {"mcp_servers": ["pods"], "custom_instructions": "Find the cause."}},
    "agent_chains": {
        CHAIN: {
            "alert_types": [ALERT_TYPE],
            "stages": [{"name": "investigation", "agents": [{"name": "Investigator"}]}],
        }
    },
    "defaults": {
        "llm_provider": "stand-in",
        "llm_backend": "langchain",
        "scoring": {"enabled": False},
        "memory": {"enabled": False},
    },
    "queue": {"poll_interval": "200ms", "poll_interval_jitter": "50ms", "graceful_shutdown_timeout": "5s"},
    "system": {"cost_estimation": {"enabled": False}},
}
PROVIDERS = {"llm_providers": {"stand-in": {"type": "openai", "model": "stand-in", "api_key_env": "OPENAI_API_KEY"}}}


class Tarsy:
    """Upstream's running server, as its users see it."""

    def __init__(self, base_url: str, urls: Mapping[str, str]) -> None:
        self.base_url = base_url
        self.urls = urls

    async def alert(self, data: str) -> str:
        """Submit an alert; gives the id of its session."""
        document = await self._ask("POST", "alerts", json={"alert_type": ALERT_TYPE, "data": data})
        return str(document["session_id"])

    async def get(self, path: str, **parameters: str) -> Any:
        """A document below `/api/v1`."""
        return await self._ask("GET", path, params=parameters)

    async def review(self, session_id: str, action: str, **given: str) -> None:
        """Review a session as alice."""
        wanted = {"session_ids": [session_id], "action": action, **given}
        document = await self._ask("PATCH", "sessions/review", json=wanted, headers={"X-Forwarded-User": "alice"})
        assert document["results"][0]["success"], document

    async def ends(self, session_id: str, status: str) -> None:
        """Wait until a session has this status."""

        async def has_ended() -> bool:
            return bool((await self.get(f"sessions/{session_id}"))["status"] == status)

        await wait_until(has_ended, PATIENCE_S, f"{session_id} is {status}")

    async def _ask(self, method: str, path: str, **options: Any) -> Any:
        timeout = aiohttp.ClientTimeout(total=ANSWER_S)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.request(method, f"{self.base_url}/api/v1/{path}", **options) as response,
        ):
            assert response.ok, f"{method} {path}: {response.status} {await response.text()}"
            return await response.json()


def environment(database_url: str, model_address: str, port: int, folder: str) -> dict[str, str]:
    """The variables of the server, which reads its configuration in `folder`."""
    parts = urlsplit(database_url)
    return {
        "DB_HOST": parts.hostname or "",
        "DB_PORT": str(parts.port),
        "DB_USER": parts.username or "",
        "DB_PASSWORD": parts.password or "",
        "DB_NAME": parts.path.lstrip("/"),
        "CONFIG_DIR": folder,
        "HTTP_PORT": str(port),
        "LLM_SERVICE_ADDR": model_address,
        "OPENAI_API_KEY": "stand-in",
        "HTTPS_PROXY": "http://127.0.0.1:1",  # it asks for prices in the internet, whatever its configuration says
    }


async def is_healthy(base_url: str, server: Process) -> bool:
    """Whether the server answers. Raises: AssertionError: it has ended."""
    assert server.status is None, f"TARSy's server ended with {server.status}: {server.log[-2000:]}"
    try:
        async with aiohttp.ClientSession() as session, session.get(f"{base_url}/health") as response:
            return response.ok
    except aiohttp.ClientError:
        return False
