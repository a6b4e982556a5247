"""The public keys with which proxies sign their JWTs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jwt
import structlog

from tarsy_scoring.config.watched_file import WatchedFile
from tarsy_scoring.errors import ConfigurationError

log = structlog.get_logger()

# Asymmetric ones alone: with a symmetric one, each reader could sign.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
CLOCK_SKEW_S = 30


class KeyFile(WatchedFile[tuple[jwt.PyJWK, ...]]):
    """
    Public keys in `SCORING_TRUSTED_PROXY_JWKS_FILE`, a JWK set.

    Raises:
        ConfigurationError: At the start the file is missing, or has no usable key or a private one.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "SCORING_TRUSTED_PROXY_JWKS_FILE")

    def verify(self, token: str) -> Mapping[str, Any] | None:
        """The claims of a JWT that one of the keys signed and that has not expired; None for any other."""
        try:
            key_id = jwt.get_unverified_header(token).get("kid")
        except jwt.PyJWTError:
            return None
        for key in self.current():
            if key_id is not None and key.key_id not in (None, key_id):
                continue
            try:
                return jwt.decode(
                    token,
                    key,
                    algorithms=ALGORITHMS,
                    leeway=CLOCK_SKEW_S,
                    options={"require": ["exp", "sub"], "verify_aud": False},
                )
            except jwt.PyJWTError:
                continue
        return None

    def _note_reloaded(self, content: tuple[jwt.PyJWK, ...]) -> None:
        log.info("api.proxy_keys_reloaded", path=str(self.path), keys=len(content))

    def _note_broken(self, reason: str) -> None:
        log.error("api.proxy_keys_broken", reason=reason, effect="the keys read before stay in force")

    def _parse(self, content: bytes) -> tuple[jwt.PyJWK, ...]:
        try:
            entries = json.loads(content)["keys"]
            found = jwt.PyJWKSet(entries).keys
        except (ValueError, KeyError, TypeError, RecursionError, jwt.PyJWTError):
            raise ConfigurationError(
                f'{self._where} is not a set of public keys: expected {{"keys": [...]}}'
            ) from None
        if any(isinstance(entry, dict) and {"d", "k"} & entry.keys() for entry in entries):
            raise ConfigurationError(
                f"{self._where} holds a private or a symmetric key: give the public keys alone"
            )
        usable = tuple(
            key for key in found if key.algorithm_name in ALGORITHMS and key.public_key_use != "enc"
        )
        if not usable:
            raise ConfigurationError(f"{self._where} has no key for any of {', '.join(ALGORITHMS)}")
        return usable
