"""`criteria`: lists, shows, compares and validates criteria."""

import difflib
import os
import sys
from pathlib import Path
from typing import Any

import click
import yaml

from tarsy_scoring.commands.shared import ASKED_WRONGLY, json_option, print_either, print_json, print_text
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.judge.criteria import Criteria, load_criteria, read_criteria_file, read_criteria_folder

SHIPPED = "shipped"
HASH_DIGITS = 12  # enough to distinguish criteria by eye; JSON has all 64


# Criteria and where they come from: `shipped`, or their file's path.
_Located = tuple[Criteria, str]


@click.group()
def criteria() -> None:
    """List, show, compare and validate the judge's criteria."""


@criteria.command("list")
@json_option
def list_criteria(as_json: bool) -> None:
    """
    List the criteria that a worker with these settings has.

    Prints name, strategy, hash, and `shipped` or the file in one of the criteria_dirs, then the chains that
    use them; `defaults` stands for every chain without criteria of its own.
    """
    settings = load_settings()
    documents = [
        {
            **_identity(found, source),
            "strategy": found.strategy,
            "is_default": found.name == settings.config.defaults.criteria,
            "chains": [name for name, c in settings.config.chains.items() if c.criteria == found.name],
        }
        for found, source in _configured_criteria(settings)
    ]
    print_json(documents) if as_json else print_text("criteria.txt", {"criteria": documents})


@criteria.command("show")
@click.argument("name")
@json_option
def show_criteria(name: str, as_json: bool) -> None:
    """
    Show everything that the judge is instructed with.

    That is the file and the text that code adds to it. NAME is a name from `list` or the path of a file. The
    part above the second comment is a complete criteria file, ready to be copied. `score FILE --dry-run` shows
    the prompt of a session.
    """
    found, source = _locate(name, "NAME")
    added = {"criteria_hash": found.criteria_hash, "source": source}
    added |= {key: found.content[key] for key in ("added_by_code", "prompt_hashes")}
    parts = (
        f"# The file ({source}):\n{_as_yaml(_file_content(found))}",
        f"# Added by code, and the hashes of all of it:\n{_as_yaml(added)}".removesuffix("\n"),
    )
    print_either(found.content | added, parts, as_json=as_json)


@criteria.command("diff")
@click.argument("a")
@click.argument("b")
@json_option
def diff_criteria(a: str, b: str, as_json: bool) -> None:
    """
    Show the differences between two criteria.

    A and B are names from `list` or paths of files. Text added by code is compared, too. Exit status 0 in
    either case.
    """
    first, second = _locate(a, "A"), _locate(b, "B")
    old, new = _instructions(first[0]), _instructions(second[0])
    changes = [
        {"key": key, "a": old.get(key), "b": new.get(key)}
        for key in dict.fromkeys([*old, *new])
        if old.get(key) != new.get(key)
    ]
    if as_json:
        sides = {"a": _identity(*first), "b": _identity(*second)}
        print_json({**sides, "is_same": not changes, "changes": changes})
        return
    if not changes:
        click.echo(f"no difference: both have the hash {first[0].criteria_hash[:HASH_DIGITS]}")
    lines = [_as_yaml(instructions).splitlines() for instructions in (old, new)]
    for line in difflib.unified_diff(lines[0], lines[1], a, b, lineterm=""):
        click.secho(line, fg={"+": "green", "-": "red"}.get(line[:1]))


@criteria.command("validate")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@json_option
def validate_criteria(files: tuple[Path, ...], as_json: bool) -> None:
    """
    Check criteria files before a worker reads them.

    Needs no settings. Prints every error with file, line and reason. Errors between keys (weights that do
    not add up) appear once each key is valid by itself. Exit status 0: all files are valid; 2: some are not.
    """
    documents = [_validated(file) for file in files]
    if as_json:
        print_json(documents)
    else:
        for d in documents:
            if d["is_valid"]:
                click.echo(
                    f"{d['file']}: valid ({d['name']}, {d['strategy']}, {d['criteria_hash'][:HASH_DIGITS]})"
                )
            for fault in d["faults"]:
                click.echo(fault, err=True)
    sys.exit(0 if all(d["is_valid"] for d in documents) else ASKED_WRONGLY)


def _identity(found: Criteria, source: str) -> dict[str, str]:
    return {"name": found.name, "criteria_hash": found.criteria_hash, "source": source}


def _configured_criteria(settings: Settings) -> list[_Located]:
    """Shipped criteria and those of `criteria_dirs`. Raises: ConfigurationError: see `load_criteria`."""
    directories = settings.config.criteria_dirs
    registry = load_criteria(directories)
    own = {c.name: file for directory in directories for file, c in read_criteria_folder(directory)}
    return [(c, own.get(c.name, SHIPPED)) for c in registry]


def _locate(wanted: str, argument: str) -> _Located:
    """
    Find criteria by name, else read the file at this path.

    Raises:
        click.BadParameter: Neither criteria nor a file have this name.
        ConfigurationError: The file, or the criteria of the settings, cannot be read or are not valid.
    """
    known = _configured_criteria(load_settings())
    for found, source in known:
        if found.name == wanted:
            return found, source
    path = Path(wanted)
    if os.sep in wanted or path.suffix in (".yaml", ".yml") or path.is_file():
        return read_criteria_file(path), wanted
    names = ", ".join(found.name for found, _ in known)
    raise click.BadParameter(
        f"no criteria are called {wanted!r}, and there is no such file (known: {names})", param_hint=argument
    )


def _instructions(of: Criteria) -> dict[str, Any]:
    """The judge's instructions, by key; without the hashes, which follow from them."""
    return _file_content(of) | {f"added_by_code.{key}": text for key, text in of.added_by_code.items()}


def _file_content(of: Criteria) -> dict[str, Any]:
    """A criteria file's keys in documented order, without defaults."""
    return {key: of.content[key] for key in Criteria.model_fields if key in of.content}


def _validated(file: Path) -> dict[str, Any]:
    valid, faults = None, []
    try:
        valid = read_criteria_file(file)
    except ConfigurationError as error:
        faults = str(error).splitlines()
    shown = {name: getattr(valid, name, None) for name in ("name", "strategy", "criteria_hash")}
    return {"file": str(file), "is_valid": valid is not None, **shown, "faults": faults}


class _Dumper(yaml.SafeDumper):
    """YAML with multi-line texts as blocks."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    ),
)


def _as_yaml(value: Any) -> str:
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
