"""
Settings of notification targets: where messages about scores are sent.

Addresses come from variables alone, never from an event: the address of a target may be a secret by itself.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from tarsy_scoring.config.values import Frozen, HttpUrl, NotBlank, Total

TargetName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,39}$")]


class _Target(Frozen):
    chains: tuple[NotBlank, ...] = ()
    """Only these chains; `[]`: all."""


class _Notified(_Target):
    url_env: NotBlank
    """Variable with the address; `NAME_FILE` names a file with it."""
    score_below: Total | None = None
    """Notify of totals below this number; `null`: of scores with the outcome `fail`."""


class WebhookTarget(_Notified):
    """A receiver of signed JSON."""

    type: Literal["webhook"]
    secret_env: NotBlank
    """Variable with the key of the signatures, 16 characters or more."""


class AppriseTarget(_Notified):
    """Slack, Teams, mail or another service that apprise knows, by URL."""

    type: Literal["apprise"]


class LangfuseTarget(_Target):
    """A Langfuse project, which gets every score."""

    type: Literal["langfuse"]
    base_url: HttpUrl
    """The server, such as `https://cloud.langfuse.com`."""
    public_key: NotBlank
    """Public key of the project."""
    secret_env: NotBlank
    """Variable with the secret key."""
    trace_label: NotBlank | None = None
    """Label of a session that holds its trace id there; without it: the session id."""


TargetSettings = Annotated[WebhookTarget | AppriseTarget | LangfuseTarget, Field(discriminator="type")]
TARGET_TYPES: Mapping[str, type[_Target]] = {
    "webhook": WebhookTarget,
    "apprise": AppriseTarget,
    "langfuse": LangfuseTarget,
}


def secret_variables(target: TargetSettings) -> list[str]:
    """The variables that hold the address or a secret of a target."""
    return [value for name, value in target if name in ("url_env", "secret_env")]
