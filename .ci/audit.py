"""
Look up known vulnerabilities of all requirements in the package index.

A vulnerability that is not accepted ends the audit with exit status 1. If the index does not answer, or knows
less than
nine in ten packages, the audit says that nothing was audited. That is an error only with `AUDIT_REQUIRED=1`,
which the
scheduled and the release workflow set: an outage of the index must not stop other work, and must not count as
clean
either. `audit-accepted.yaml` lists accepted vulnerabilities, each with a reason and an expiry date.
"""

import datetime
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = sorted((ROOT / "requirements").glob("*.txt"))
ACCEPTED = Path(__file__).with_name("audit-accepted.yaml")
TIMEOUT_S = 120
LEAST_SHARE = 0.9  # of the packages that the index must know
KEYS = {"id", "package", "reason", "until"}


@dataclass
class Findings:
    """The result of an audit, as lines for people."""

    vulnerable: list[str] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    audited: int = 0


def main() -> int:
    """
    Audit the requirements.

    Exit status 1: an open vulnerability, or a required audit that did not happen; 2: `audit-accepted.yaml` is
    invalid.
    """
    try:
        accepted = read_accepted(ACCEPTED.read_text(encoding="utf-8"))
    except ValueError as error:
        print(f"audit: {ACCEPTED.name}: {error}", file=sys.stderr)
        return 2
    report, why = ask_index(REQUIREMENTS)
    if report is None:
        return not_audited(why)
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


def ask_index(requirements: Sequence[Path]) -> tuple[dict[str, Any] | None, str]:
    """The report of pip-audit; or None and the reason why there is none."""
    program = Path(sys.executable).with_name("pip-audit")
    options = ["--disable-pip", "--require-hashes", "--progress-spinner", "off", "--format", "json"]
    files = [part for path in requirements for part in ("-r", path)]
    try:
        ended = subprocess.run(
            [program, *files, *options], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
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
    for package in {(p["name"], p.get("version")): p for p in report["dependencies"]}.values():
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
        print(
            f"audit: WARNING: the index knows nothing of {len(findings.unknown)} packages: {names}",
            file=sys.stderr,
        )
    of = findings.audited + len(findings.unknown)
    print(f"audit: {findings.audited} of {of} packages looked at; to act on: {len(findings.vulnerable)}")
    if findings.vulnerable:
        return 1
    if findings.audited < LEAST_SHARE * of or not of:
        return not_audited(
            f"the index knows {findings.audited} of {of} packages, fewer than {LEAST_SHARE:.0%}"
        )
    return 0


def not_audited(why: str) -> int:
    """Say that there is no result, and return the exit status."""
    print(f"audit: NOT AUDITED: {why}", file=sys.stderr)
    return 1 if os.environ.get("AUDIT_REQUIRED") == "1" else 0


if __name__ == "__main__":
    sys.exit(main())
