"""Attacks on the API: access, malformed bytes, half heads, and paths that lead elsewhere."""

import asyncio
import json

import pytest
from holding import Attack
from target import AS_BROWSER, REQUESTS, SCORE, Target, connect, exchange

from processes import small_session
from tarsy_scoring.web.pages import registry

pytestmark = pytest.mark.asyncio(loop_scope="session")

PROBES = {"/healthz", "/readyz"}
OPEN = {"/sign-in", "/static/0000000000000000/live.js"}  # the form for a token, and its style
IDS = {
    "session_id": "attack-1",
    "score_id": "00000000-0000-4000-8000-000000000000",
    "criteria_hash": "0" * 64,
    "event_id": "event-1",
    "digest": "0" * 16,
    "name": "live.js",
}
OTHERS = [("GET", "/openapi.json"), ("GET", "/metrics"), ("GET", "/docs"), ("GET", "/nowhere"), ("HEAD", "/")]
OTHERS += [(method, "/") for method in ("PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")]
AT_ONCE, CALLS = 300, 20  # more than there are places for requests, and fewer
SILENT = 200
HALF_HEADS, GONE_S = 800, 15
MARKER = "content-of-a-file-outside"
BEARER = f"Authorization: Bearer {SCORE}"


async def all_routes(target: Target) -> list[tuple[str, str]]:
    """Method and path of every route: those of the served OpenAPI, the pages, and addresses that do not exist."""
    paths = json.loads((await target.read("/openapi.json")).text)["paths"]
    routes = [*OTHERS, *((method.upper(), path) for path, methods in paths.items() for method in methods)]
    for router in registry.routers():
        routes += [(method, route.path) for route in router.routes for method in route.methods]
    return sorted({(method, path.format(**IDS)) for method, path in routes})


async def test_every_route_asks_who_calls(target: Target, attack: Attack) -> None:
    """Strangers get 401 everywhere, readers 403 for every change; only the probes are open."""
    routes = await all_routes(target)
    with attack("routes by callers") as holds:
        for kind in ("strangers", "readers", "scorers"):
            for who, headers in REQUESTS[kind].items():
                for method, path in routes:
                    seen = await target.request(method, path, *headers)
                    if (method, path) in {("GET", probe) for probe in PROBES}:
                        is_right = seen.status == 200
                    elif path in OPEN:
                        is_right = seen.status in ((303, 404, 405) if method == "POST" else (200, 404, 405))
                    elif kind == "strangers":
                        is_right = seen.status == 401 and "attack-1" not in seen.text
                    elif kind == "readers" and method not in ("GET", "HEAD", "OPTIONS"):
                        is_right = seen.status == 403
                    else:
                        is_right = seen.status not in (0, 401, 403) and seen.status < 500
                    holds(f"{who}: {method} {path}", is_right, seen)
                seen = await target.handshake(*headers)
                holds(f"{who}: WebSocket", seen.status == (401 if kind == "strangers" else 101), seen)
        for query in (f"access_token={SCORE}", f"token={SCORE}", f"authorization=Bearer%20{SCORE}"):
            seen = await target.request("GET", f"/api/v1/scoring/sessions?{query}")
            holds(f"token in the address: {query}", seen.status == 401, seen)
        for path in ("/metrics", "/metrics/", "//metrics", "/healthz/../metrics", "/healthz%2f..%2fmetrics"):
            seen = await target.read(path)
            holds(f"metrics at the API: {path}", seen.status in (404, 422) and "tarsy_scoring" not in seen.text, seen)
        seen = await target.request("GET", "/metrics", port=target.metrics_port)
        holds("metrics at their own port", seen.status == 200, seen)


async def test_malformed_requests_are_refused(target: Target, attack: Attack) -> None:
    """Each gets a status of 4xx, or the connection is cut off; other callers are answered meanwhile."""
    half = ["", "GET ", "GET / HTTP/1.1\r\nHost: a\r\n", target.fill("POST / HTTP/1.1\r\n$HEAD")]
    with attack("malformed requests") as holds:
        writers = [(await connect(target.port))[1] for _ in range(SILENT)]
        for number, writer in enumerate(writers):
            writer.write(half[number % len(half)].encode())
        for name, case in REQUESTS["malformed"].items():
            refused = exchange(target.port, target.fill(case["send"]).encode("latin-1"))
            seen, mine = await asyncio.gather(refused, target.read("/api/v1/scoring/sessions?limit=1"))
            holds(name, seen.status in case["refused"] and "Traceback" not in seen.text, seen)
            holds(f"{name}: a caller is answered meanwhile", mine.status == 200, mine)
        for writer in writers:
            writer.transport.abort()
        holds("the API still runs", target.guarded.status is None)


async def test_half_heads_are_gone_in_time(target: Target, attack: Attack) -> None:
    """At the API and at the port of metrics; readers that do not read are in `test_api_connections`."""
    with attack("half heads") as holds:
        connections = [await connect(port) for port in (target.port, target.metrics_port) for _ in range(HALF_HEADS)]
        for number, (_, writer) in enumerate(connections):
            writer.write((b"", b"G", b"GET / HTTP/1.1\r\nHost: a\r\n")[number % 3])
        async with asyncio.timeout(GONE_S):
            ends = await asyncio.gather(*(reader.read() for reader, _ in connections), return_exceptions=True)
        for end in ends:
            holds("a half head", isinstance(end, OSError) or end == b"", end)
        for _, writer in connections:
            writer.transport.abort()


async def test_paths_lead_nowhere_else(target: Target, attack: Attack) -> None:
    """Neither ids of sessions nor names of static files reach a file outside of their folder."""
    sessions, outside = target.service.sessions, target.service.folder / "outside.json"
    outside.write_text(json.dumps(small_session("linked") | {"alert_data": MARKER, "final_analysis": MARKER}))
    (sessions / "linked.json").symlink_to(outside)
    (sessions / "linked-folder.json").symlink_to(outside.parent)
    static = (await target.read("/")).text.partition("/static/")[2]
    with attack("paths") as holds:
        for path in REQUESTS["traversals"]:
            asked = path.replace("$FILE", str(outside).lstrip("/")).replace("$DIGEST", static.partition("/")[0])
            for method in ("GET", "POST") if path.endswith("score") else ("GET",):
                seen = await target.request(method, asked, BEARER, AS_BROWSER)
                leaks = [word for word in (MARKER, "root:", "{% block") if word in seen.text]
                holds(f"{method} {path}", seen.status < 500 and not leaks, (leaks, seen.status))
        holds("no content of that file in the logs", MARKER not in target.logs)
