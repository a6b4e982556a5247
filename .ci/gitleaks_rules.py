"""
Writes the token patterns of gitleaks to `service/tarsy_scoring/timeline/clean/gitleaks.yaml`.

`python .ci/gitleaks_rules.py PATH/TO/gitleaks.toml COMMIT`, with the file `config/gitleaks.toml` of a
checkout.
Patterns that find a value by the name before it are left out: `secrets.yaml` reads names and values apart.
"""

import re
import sys
import tomllib
from pathlib import Path

TARGET = Path(__file__).parents[1] / "service/tarsy_scoring/timeline/clean/gitleaks.yaml"
HEADER = """\
# Patterns of tokens that their own shape identifies, from gitleaks
# (https://github.com/gitleaks/gitleaks, config/gitleaks.toml, commit {commit}).
# MIT License, Copyright (c) 2019 Zachary Rice: the text is in gitleaks.LICENSE. Written by .ci/gitleaks_rules.py.
"""
BY_NAME = r"[\w.-]{0,50}?"
# Patterns that need a file name, the word before them, or a whole command; `secrets.yaml` has those without a
# prefix.
LEFT_OUT = {
    "azure-ad-client-secret", "hashicorp-tf-api-token", "maxmind-license-key",
    "curl-auth-header", "curl-auth-user", "facebook-access-token", "freemius-secret-key", "generic-api-key",
    "kubernetes-secret-yaml", "nuget-config-password", "pkcs12-file", "private-key", "sidekiq-sensitive-url",
    "sourcegraph-access-token",
}  # fmt: skip
# What must follow a token in a file of source code. In logs anything may.
RIGHT_EDGE = re.compile(r"""\(\?:\[\\x60'"\\s;\]\|\\\\\[nr\]\|\$(?:\|\\b)?\)$""")

GROUP = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\((?:\?P<\w+>|(?!\?))")


def main() -> None:
    source, commit = sys.argv[1:]
    rules = tomllib.loads(Path(source).read_text("utf-8"))["rules"]
    lines = [HEADER.format(commit=commit), "tokens:"]
    for rule in rules:
        if rule["id"] not in LEFT_OUT and "regex" in rule and BY_NAME not in rule["regex"]:
            pattern = RIGHT_EDGE.sub("", rule["regex"]).removeprefix(r"\b")
            pattern = GROUP.sub(lambda match: "(?:" if match[0].startswith("(") else match[0], pattern)
            quoted = pattern.replace("'", "''")
            lines.append(f"  {rule['id']}: '{quoted}'")
    TARGET.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
