"""Attacks by commands of gates: whatever an agent left in the work directory may run, and looks for secrets."""

import json

import pytest
import yaml
from holding import Attack
from target import Target

from processes import small_session

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEY = "sk-key-of-a-provider-in-a-file"
ORDINARY = "ordinary content of the work directory"


async def test_commands_of_gates_read_no_secret(target: Target, attack: Attack) -> None:
    """Neither the environments of processes, nor files with secrets, nor files of another session."""
    service = target.service
    folder = service.folder / "gated"
    work, other = folder / "of" / "gated", folder / "of" / "another"
    for made in (work, other):
        made.mkdir(parents=True)
    files = {"key": KEY, "url": service.database_url}
    for name, content in files.items():
        (folder / name).write_text(content)
    (work / "notes.txt").write_text(ORDINARY)
    (other / "notes.txt").write_text("notes of another session")
    (work / "link").symlink_to(folder / "key")
    (folder / "gated.json").write_text(json.dumps(small_session("gated")))

    def gate(name: str, command: str, substring: str) -> dict[str, str]:
        return {"type": "command_output_contains", "command": command, "substring": substring, "name": name}

    planted = service.env["OPENAI_API_KEY"]
    environments = ("env", "tr '\\0' '\\n' < /proc/$PPID/environ", "cat /proc/*/environ", "cat /proc/$PPID/mem")
    # A message quotes what a gate looks for, so each looks for a part of a secret.
    key, url = KEY[:12], service.database_url[:30]
    hostile = [gate(command, command, planted[:12]) for command in environments]
    hostile += [
        gate("key by its path", f"cat {folder / 'key'}", key),
        gate("URL by its path", f"cat {folder / 'url'}", url),
        gate("key by a relative path", "cat ../../key", key),
        gate("key by a link", "cat link", key),
        gate("key by a hard link", f"cp {folder / 'key'} copied; ln {folder / 'key'} hard; cat copied hard", key),
        gate("key by a descriptor", "cat /proc/$PPID/fd/*", key),
        gate("another session", "cat ../another/notes.txt", "another session"),
        gate("search", f"find {folder.parent} -name tokens.json -exec cat {{}} +", "sha256"),
        {"type": "file_contains", "path": "link", "substring": key, "name": "file by a link"},
    ]
    ordinary = gate("ordinary", "cat notes.txt", ORDINARY)
    config = {
        "providers": {"main": {"base_url": service.judge.base_url, "api_key_file": str(folder / "key")}},
        "defaults": {"providers": ["main"], "gates": [ordinary, *hostile]},
        "gates": {"allow_commands": True, "work_dir": f"{folder}/of/{{session_id}}"},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    env = {"SCORING_CONFIG": str(folder / "config.yaml"), "SCORING_DATABASE_URL": ""}
    env["SCORING_DATABASE_URL_FILE"] = str(folder / "url")
    ended = await service.run("score", str(folder / "gated.json"), "--no-judge", "--json", **env)
    with attack("gates") as holds:
        gates = {gate["name"]: gate for gate in ended.document["gates"]}
        holds("an ordinary command passes", gates[ordinary["name"]]["passed"], gates[ordinary["name"]])
        for tried in hostile:
            holds(tried["name"], not gates[tried["name"]]["passed"], gates[tried["name"]]["message"])
        for words in (KEY, planted, service.database_url):
            holds("no secret in the output", words not in ended.stdout + ended.stderr)
