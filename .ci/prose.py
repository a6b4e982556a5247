"""
Check prose for plain English: list the lines with words that hide the actor of a sentence.

    python .ci/prose.py            prints `FILE:LINE: word: text` for each; exit status 1 if there is any
"""

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORDS = re.compile(r"(?<![A-Za-z])(told|nobody|somebody|whoever)(?![A-Za-z])", re.IGNORECASE)
# Prose only: in code `what` is a good name.
PHRASES = re.compile(r"\bwhat is\b", re.IGNORECASE)
LOOKED_AT = (
    "service/",
    "docs/",
    "schemas/",
    "benchmarks/",
    "helm/",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
)
ENDINGS = (".py", ".md", ".html", ".js", ".yaml", ".yml", ".txt", ".tpl")
# Prompts are part of the criteria hash; the examples are sessions; `nobody` is an account of Unix.
EXCEPTED = re.compile(r"shipped_criteria/|/examples/|\"nobody\"|`nobody`")


def main() -> int:
    """Print the findings; return 1 if there is any, else 0."""
    found = list(findings())
    for line in found:
        print(line)
    print(f"{len(found)} lines hide an actor" if found else "no line hides an actor")
    return 1 if found else 0


def findings() -> Iterator[str]:
    """Yield `FILE:LINE: words: text` for each line of the project's own files that contains such a word."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        if not name.startswith(LOOKED_AT) or not name.endswith(ENDINGS) or EXCEPTED.search(name):
            continue
        text = (ROOT / name).read_text(encoding="utf-8")
        prose = _prose_lines(text) if name.endswith(".py") else set(range(1, text.count("\n") + 2))
        for number, line in enumerate(text.splitlines(), 1):
            words = WORDS.findall(line)
            if name.endswith(".py") and number in prose:
                words += PHRASES.findall(line)
            if words and not EXCEPTED.search(line):
                yield f"{name}:{number}: {', '.join(words)}: {line.strip()[:100]}"


def _prose_lines(source: str) -> set[int]:
    """Numbers of the lines of comments and docstrings."""
    lines: set[int] = set()
    before = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            lines.add(token.start[0])
        elif token.type == tokenize.STRING and before in (tokenize.NEWLINE, tokenize.INDENT, tokenize.NL):
            lines.update(range(token.start[0], token.end[0] + 1))
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            before = token.type
    return lines


if __name__ == "__main__":
    sys.exit(main())
