"""
The baseline of the benchmark: the openai client alone, with two calls per score in one conversation.

Reads conversations from a file and prints the completion times (seconds since the epoch) as JSON. No service
that uses this client can reach more scores per second in one process.
"""

import argparse
import asyncio
import json
import secrets
import sys
import time
from pathlib import Path

import httpx2
import openai
import uvloop

NONCE = "{nonce-of-the-score}"


async def main(asked: argparse.Namespace) -> None:
    conversations = json.loads(asked.conversations.read_text(encoding="utf-8"))
    client = openai.AsyncOpenAI(
        base_url=asked.base_url,
        api_key="stand-in",
        max_retries=0,
        timeout=300,
        http_client=openai.DefaultAioHttpClient(
            limits=httpx2.Limits(max_connections=asked.slots, max_keepalive_connections=asked.slots)
        ),
    )
    left = iter(range(asked.scores))
    completions: list[float] = []

    async def ask(messages: list[dict[str, str]]) -> str:
        answer = await client.chat.completions.create(model=asked.model, messages=messages, max_tokens=8000)  # type: ignore[arg-type]
        return answer.choices[0].message.content or ""

    async def slot() -> None:
        for n in left:
            system, prompt, follow_up = conversations[n % len(conversations)]
            # Each score has its own nonce, as in the service, so that the judge has no answer in its cache.
            messages = [
                {"role": "system", "content": system},
                {"role": "user", "content": prompt.replace(NONCE, secrets.token_hex(16))},
            ]
            messages.append({"role": "assistant", "content": await ask(messages)})
            messages.append({"role": "user", "content": follow_up})
            await ask(messages)
            completions.append(time.time())

    started = time.time()
    async with asyncio.TaskGroup() as group:
        for _ in range(asked.slots):
            group.create_task(slot())
    await client.close()
    json.dump({"started": started, "completions": completions}, sys.stdout)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--conversations", type=Path, required=True, help="JSON: [[system, prompt, follow-up], ...]")
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--scores", type=int, required=True)
    uvloop.run(main(parser.parse_args()))
