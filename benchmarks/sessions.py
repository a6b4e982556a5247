"""
Session files that look like investigations of a cluster: about 40 tool calls, about 100 KB when rendered.

They come from a seeded generator, so every run of the benchmark judges the same bytes.
"""

import json
import random
from collections.abc import Callable
from typing import Any

CALLS = 40
BODIES = 32
"""Number of different investigations; further sessions repeat them under other ids."""
CONTEXT_BYTES = 100_000
ALERT_TYPE = "HighErrorRate"
_PLACEHOLDER_ID = "bench-00000000"

_SERVICES = ("checkout", "cart", "payment", "catalogue", "shipping", "search", "frontend", "orders", "inventory")
_TOOLS = {
    "pods_list": "List pods of a namespace with status, restarts, age and node.",
    "pods_describe": "Describe one pod: containers, limits, last state, conditions, events.",
    "pods_log": "Log of a container. `previous: true` reads the container that ended before.",
    "events_list": "Events of a namespace, newest last.",
    "resources_get": "One object of any kind as YAML.",
    "query_range": "PromQL over a time range with a step in seconds.",
}


def session_name(number: int) -> str:
    """The id of a session, in every source the same."""
    return f"bench-{number:08d}"


def make_session(session_id: str, seed: int) -> dict[str, Any]:
    """One session in the neutral JSON shape."""
    rng = random.Random(seed)
    service = rng.choice(_SERVICES)
    events: list[dict[str, Any]] = []

    def add(kind: str, content: str, **metadata: Any) -> None:
        events.append(
            {
                "event_id": f"{seed}-{len(events)}",
                "sequence_number": len(events),
                "event_type": kind,
                "status": "completed",
                "content": content,
                "metadata": metadata,
                "created_at": f"2026-03-02T10:{len(events) % 60:02d}:00.000Z",
            }
        )

    results = sum(make[1] for make in _RESULTS.values())
    names = [n for n, (_, weight) in _RESULTS.items() for _ in range(round(CALLS * weight / results))]
    rng.shuffle(names)
    for name in names:
        add("llm_thinking", _reasoning(rng, service))
        arguments = json.dumps({"namespace": "shop", "name": f"{service}-{rng.randrange(10)}", "limit": 100})
        content = _RESULTS[name][0](rng, service)
        add("llm_tool_call", content, server_name="kubernetes", tool_name=name, arguments=arguments, is_error=False)
    analysis = " ".join(_reasoning(rng, service) for _ in range(8))
    add("final_analysis", analysis)
    return {
        "session_id": session_id,
        "alert_type": ALERT_TYPE,
        "alert_data": f"alertname: {ALERT_TYPE}\nseverity: critical\nnamespace: shop\nworkload: deployment/{service}",
        "chain_id": "kubernetes",
        "status": "completed",
        "created_at": "2026-03-02T10:00:00.000Z",
        "completed_at": "2026-03-02T10:58:00.000Z",
        "stages": [
            {
                "stage_id": "stage-1",
                "stage_name": "investigation",
                "stage_index": 0,
                "stage_type": "investigation",
                "status": "completed",
                "executions": [
                    {
                        "execution_id": "execution-1",
                        "agent_name": "kubernetes-agent",
                        "agent_index": 1,
                        "status": "completed",
                        "llm_provider": "scripted",
                        "model_name": "agent-model-1",
                        "events": events,
                    }
                ],
            }
        ],
        "available_tools": [
            {"server_name": "kubernetes", "tool_name": name, "description": text} for name, text in _TOOLS.items()
        ],
        "final_analysis": analysis,
        "executive_summary": None,
    }


def _reasoning(rng: random.Random, service: str) -> str:
    other = rng.choice(_SERVICES)
    return rng.choice(
        (
            f"The error rate of {service} rose within two minutes of the alert, while {other} stayed where it was. "
            "Before I conclude anything from that I want to see whether its containers were restarted, and why.",
            f"Nothing in the events of {other} explains the timeouts. The last revision of {service} is older than "
            "the alert, so a deployment is unlikely to be the cause; I will compare memory and latency next.",
            f"The log shows refused connections to {other} from several pods at once. That points to the server side "
            f"or to the network between them rather than to one broken replica of {service}.",
        )
    )


def _hex(rng: random.Random, digits: int) -> str:
    return f"{rng.getrandbits(4 * digits):0{digits}x}"


def _pod(rng: random.Random, service: str) -> str:
    return f"{service}-{_hex(rng, 9)}-{_hex(rng, 5)}"


def _pods(rng: random.Random, _: str) -> str:
    rows = ["NAME                              READY   STATUS             RESTARTS   AGE   IP            NODE"]
    for _row in range(26):
        pod = _pod(rng, rng.choice(_SERVICES))
        status = rng.choice(("Running", "Running", "Running", "CrashLoopBackOff", "Pending"))
        rows.append(
            f"{pod:<33} 1/1     {status:<18} {rng.randrange(20):<10} {rng.randrange(90)}d   "
            f"10.2.{rng.randrange(255)}.{rng.randrange(255):<6} node-{rng.randrange(12)}"
        )
    return "\n".join(rows)


def _describe(rng: random.Random, service: str) -> str:
    pod = {
        "metadata": {"name": _pod(rng, service), "namespace": "shop", "uid": _hex(rng, 32), "labels": {"app": service}},
        "spec": {
            "containers": [
                {
                    "name": service,
                    "image": f"registry.example/shop/{service}@sha256:{_hex(rng, 64)}",
                    "resources": {"limits": {"cpu": "500m", "memory": "512Mi"}, "requests": {"memory": "256Mi"}},
                    "env": [
                        {"name": "DB_HOST", "value": "orders-db.shop.svc"},
                        {"name": "DB_PASSWORD", "value": _hex(rng, 16)},
                    ],
                }
            ]
        },
        "status": {
            "phase": "Running",
            "conditions": [
                {"type": t, "status": "True", "lastTransitionTime": f"2026-03-02T09:{rng.randrange(60):02d}:11Z"}
                for t in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
            ],
            "containerStatuses": [
                {"name": service, "restartCount": rng.randrange(9), "lastState": {"terminated": {"exitCode": 137}}}
            ],
        },
    }
    return json.dumps(pod, indent=2)


def _log(rng: random.Random, service: str) -> str:
    lines = []
    for second in range(20):
        level = rng.choice(("INFO", "INFO", "INFO", "WARN", "ERROR"))
        other = rng.choice(_SERVICES)
        said = rng.choice(
            (
                f"GET /api/v1/{other}/{rng.randrange(10**6)} 200 in {rng.randrange(900)} ms",
                f"upstream {other}.shop.svc:8080 refused the connection, attempt {rng.randrange(5)} of 5",
                f"pool exhausted: {rng.randrange(64)} waiting, oldest for {rng.randrange(30)} s",
            )
        )
        lines.append(f"2026-03-02T10:{second:02d}:{rng.randrange(60):02d}.412Z {level} trace={_hex(rng, 16)} {said}")
    lines.append(f"{service}: end of log")
    return "\n".join(lines)


def _events(rng: random.Random, service: str) -> str:
    return "\n".join(
        f"{rng.randrange(60)}m  Warning  BackOff  pod/{_pod(rng, service)}  Back-off restarting failed container"
        for _ in range(22)
    )


def _manifest(rng: random.Random, service: str) -> str:
    env = "\n".join(f"        - name: OPTION_{n}\n          value: value-{_hex(rng, 6)}" for n in range(20))
    return (
        f"apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: {service}\n  namespace: shop\nspec:\n"
        f"  replicas: {rng.randrange(2, 9)}\n  template:\n    spec:\n      containers:\n      - name: {service}\n"
        f"        image: registry.example/shop/{service}:1.{rng.randrange(40)}\n        env:\n{env}\n"
    )


def _series(rng: random.Random, service: str) -> str:
    values = [[1772445600 + 15 * n, f"{rng.random() * 100:.4f}"] for n in range(90)]
    metric = {"__name__": "http_requests_errors", "service": service}
    return json.dumps(
        {"status": "success", "data": {"resultType": "matrix", "result": [{"metric": metric, "values": values}]}}
    )


# Generator of each tool's result, and how often out of ten the tool is called.
_RESULTS: dict[str, tuple[Callable[[random.Random, str], str], int]] = {
    "pods_list": (_pods, 2),
    "pods_describe": (_describe, 1),
    "pods_log": (_log, 3),
    "events_list": (_events, 1),
    "resources_get": (_manifest, 1),
    "query_range": (_series, 2),
}
