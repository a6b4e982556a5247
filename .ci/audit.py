"""
Look up known vulnerabilities of every requirement that a deployment installs, in the package index.

A vulnerability that is not accepted ends the audit with exit status 1. If the index does not answer, or does not know
a package, the audit prints a warning: an outage of the index must not stop work, and an unknown package must not
count as clean. `audit-accepted.yaml` lists accepted vulnerabilities, each with a reason and an expiry date.
"""

import datetime
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = ROOT / "requirements" / "runtime.txt"
ACCEPTED = Path(__file__).with_name("audit-accepted.yaml")
TIMEOUT_S = 45
KEYS = {"id", "package", "reason", "until"}


@dataclass
class Findings:
    """The result of an audit, as lines for people."""

    vulnerable: list[str] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    audited: int = 0


def main() -> int:
    """Audit the requirements. Exit status 1: an open vulnerability; 2: `audit-accepted.yaml` is invalid; else 0."""
    try:
        accepted = read_accepted(ACCEPTED.read_text(encoding="utf-8"))
    except ValueError as error:
        print(f"audit: {ACCEPTED.name}: {error}", file=sys.stderr)
        return 2
    report, why = ask_index(REQUIREMENTS)
    if report is None:
        print(f"audit: WARNING: it did not happen: {why}", file=sys.stderr)
        return 0
    return tell(weigh(report, accepted, datetime.datetime.now(datetime.UTC).date()))


def read_accepted(text: str) -> list[dict[str, Any]]:
    """
    Parse the accepted vulnerabilities.

    Raises:
        ValueError: An entry lacks a key, has an unknown one, or has an invalid date.
    """
    entries = yaml.safe_load(text) or []
    if not isinstance(entries, list):
        raise ValueError("expected a list")
    for entry in entries:
        if not isinstance(entry, dict) or set(entry) != KEYS or not all(entry.values()):
            raise ValueError(f"each entry has {', '.join(sorted(KEYS))}, none of them empty: {entry}")
        if type(entry["until"]) is not datetime.date:
            raise ValueError(f"{entry['id']}: until is a date such as 2026-12-31")
    return entries


def ask_index(requirements: Path) -> tuple[dict[str, Any] | None, str]:
    """The report of pip-audit; or None and the reason why there is none."""
    program = Path(sys.executable).with_name("pip-audit")
    options = ["--disable-pip", "--require-hashes", "--progress-spinner", "off", "--format", "json"]
    try:
        ended = subprocess.run(
            [program, "-r", requirements, *options], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except FileNotFoundError:
        return None, f"{program} is not installed"
    except subprocess.TimeoutExpired:
        return None, f"no answer within {TIMEOUT_S} s"
    try:
        return json.loads(ended.stdout), ""
    except ValueError:
        lines = ended.stderr.strip().splitlines()
        return None, lines[-1][:300] if lines else f"pip-audit ended with {ended.returncode}"


def weigh(report: Mapping[str, Any], accepted: Sequence[Mapping[str, Any]], today: datetime.date) -> Findings:
    """Sort the reported vulnerabilities. An accepted one counts again from the day after its date."""
    findings = Findings()
    for package in report["dependencies"]:
        if "skip_reason" in package:
            findings.unknown.append(package["name"])
            continue
        findings.audited += 1
        for found in package["vulns"]:
            names = {found["id"], *found.get("aliases", ())}
            fixed = ", ".join(found.get("fix_versions") or ()) or "no version yet"
            line = f"{package['name']} {package['version']}: {found['id']} (fixed in {fixed})"
            entry = next((a for a in accepted if a["id"] in names and a["package"] == package["name"]), None)
            if entry is None:
                findings.vulnerable.append(line)
            elif entry["until"] < today:
                findings.vulnerable.append(f"{line}, accepted until {entry['until']}: look at it again")
            else:
                findings.accepted.append(f"{line}, accepted until {entry['until']}: {entry['reason']}")
    return findings


def tell(findings: Findings) -> int:
    """Print the findings and return the exit status."""
    for line in findings.accepted:
        print(f"audit: {line}")
    for line in findings.vulnerable:
        print(f"audit: VULNERABLE: {line}", file=sys.stderr)
    if findings.unknown:
        names = ", ".join(findings.unknown[:5]) + (", ..." if len(findings.unknown) > 5 else "")
        print(f"audit: WARNING: the index knows nothing of {len(findings.unknown)} packages: {names}", file=sys.stderr)
    of = findings.audited + len(findings.unknown)
    print(f"audit: {findings.audited} of {of} packages looked at; to act on: {len(findings.vulnerable)}")
    return 1 if findings.vulnerable else 0


if __name__ == "__main__":
    sys.exit(main())
