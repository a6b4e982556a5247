"""
Compare the code with the golden artefacts in `data/`: criteria hashes, the judge's input and query plans.

`python tests/golden/freeze.py` compares, `--write` writes the artefacts. A refactoring leaves every artefact unchanged.
A change of behaviour commits the new artefacts.
"""

import argparse
import difflib
import json
import os
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(__file__).resolve().parent / "data"
SESSIONS_VARIABLE = "GOLDEN_SESSIONS"
SAME, DIFFERENT = 0, 1
SHOWN_LINES = 200

# The code of this checkout comes first, before an installed package of the same name.
sys.path[:0] = [str(ROOT / part) for part in ("service", "tests", "tests/deployment", "schemas", "")]

from golden.artefacts import ARTEFACTS, Content, Skipped, Surroundings  # noqa: E402

EPILOG = f"""\
artefacts:
{{artefacts}}

examples:
  python tests/golden/freeze.py                         compare all
  python tests/golden/freeze.py --only criteria plans   compare two of them
  python tests/golden/freeze.py --write --only plans    accept changed plans

In a diff, lines with - come from tests/golden/data and lines with + from the code. An artefact is skipped, with the
reason, where the machine lacks the recorded sessions; a skipped artefact is no failure.

The default folder of recorded sessions is ../shared/sessions beside the checkout. For a checkout in another place, give
--sessions or set {SESSIONS_VARIABLE}.

Exit status: 0 no difference, or written; 1 a difference or an artefact that failed; 2 wrong use.
"""


def main() -> int:
    """Compare or write the artefacts; returns the exit status."""
    chosen = _arguments()
    status = SAME
    with ExitStack() as stack:
        surroundings = Surroundings(ROOT, chosen.sessions, stack)
        for name in chosen.only or ARTEFACTS:
            began = time.monotonic()
            try:
                files = {file: _as_text(content) for file, content in ARTEFACTS[name](surroundings).items()}
            except Skipped as reason:
                _say(f"{name}: skipped, {reason}")
                continue
            except Exception:
                traceback.print_exc()
                _say(f"{name}: failed, see the traceback above")
                status = DIFFERENT
                continue
            changed = _differences(name, files)
            outcome = "the same" if not changed else "written" if chosen.write else "DIFFERENT"
            _say(f"{name}: {outcome} ({time.monotonic() - began:.1f} s)")
            if chosen.write:
                _write(name, files)
            elif changed:
                _say(changed)
                status = DIFFERENT
    if status != SAME and not chosen.write:
        _say("To accept an intended change, run this with --write and commit tests/golden/data.")
    return status


def _arguments() -> argparse.Namespace:
    listed = "\n".join(f"  {name:<10} {(make.__doc__ or '').strip()}" for name, make in ARTEFACTS.items())
    parser = argparse.ArgumentParser(
        prog="freeze.py",
        description="Compare the code with the golden artefacts in tests/golden/data.",
        epilog=EPILOG.replace("{artefacts}", listed),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--write", action="store_true", help="write the artefacts instead of comparing them")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=ARTEFACTS, help="these artefacts; default: all")
    parser.add_argument(
        "--sessions",
        type=Path,
        metavar="DIR",
        default=os.environ.get(SESSIONS_VARIABLE) or ROOT.parent / "shared" / "sessions",
        help=f"folder of recorded sessions; default: {SESSIONS_VARIABLE}, else ../shared/sessions",
    )
    return parser.parse_args()


def _stored(name: str) -> dict[str, Path]:
    """The stored files of an artefact: `NAME.json`, or the files in the folder `NAME`."""
    return {str(path.relative_to(DATA)): path for path in (*DATA.glob(f"{name}/*"), *DATA.glob(f"{name}.json"))}


def _differences(name: str, files: Mapping[str, str]) -> str:
    """A unified diff of all files of an artefact, at most `SHOWN_LINES` lines; empty if nothing differs."""
    before = {file: path.read_text("utf-8") for file, path in _stored(name).items()}
    lines: list[str] = []
    for file in sorted({*before, *files}):
        old, new = before.get(file, ""), files.get(file, "")
        lines += difflib.unified_diff(old.splitlines(), new.splitlines(), f"data/{file}", f"now/{file}", "", "", 3, "")
    if len(lines) > SHOWN_LINES:
        left_out = f"... {len(lines) - SHOWN_LINES} more lines; all of them: --write --only {name}, then git diff"
        lines[SHOWN_LINES:] = [left_out]
    return "\n".join(lines)


def _write(name: str, files: Mapping[str, str]) -> None:
    for file, path in _stored(name).items():
        if file not in files:
            path.unlink()
    for file, text in files.items():
        (DATA / file).parent.mkdir(parents=True, exist_ok=True)
        (DATA / file).write_text(text, "utf-8")


def _as_text(content: Content) -> str:
    if isinstance(content, str):
        return content
    return json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
