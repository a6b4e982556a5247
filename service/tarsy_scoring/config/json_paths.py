"""Compiles the JSONPaths in gates."""

from jsonpath_rfc9535 import JSONPathEnvironment, JSONPathError, JSONPathQuery
from jsonpath_rfc9535.function_extensions import Match

from tarsy_scoring.config.values import compile_pattern


class _LinearMatch(Match):
    """RFC 9535's `match()` by RE2: a backtracking search over an agent's data could block the process."""

    whole = True

    def __call__(self, string: object, pattern: object) -> bool:
        """
        False for a value that is no text or no pattern: RFC 9535 defines that as no match, not as an error.
        """
        if not isinstance(string, str) or not isinstance(pattern, str):
            return False
        try:
            compiled = compile_pattern(pattern)
        except ValueError:
            return False
        data = string.encode("utf-8", "replace")
        return (compiled.fullmatch(data) if self.whole else compiled.search(data)) is not None


class _LinearSearch(_LinearMatch):
    """RFC 9535's `search()` by RE2."""

    whole = False


class _Environment(JSONPathEnvironment):
    def setup_function_extensions(self) -> None:
        super().setup_function_extensions()
        self.function_extensions |= {"match": _LinearMatch(), "search": _LinearSearch()}


def compile_path(path: str) -> JSONPathQuery:
    """
    Compile a JSONPath of RFC 9535; `match` and `search` in it use RE2.

    Raises:
        ValueError: Not a JSONPath; with the reason and the position.
    """
    try:
        return _Environment().compile(path)
    except (JSONPathError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ValueError(f"not a JSONPath of RFC 9535: {reason}") from None
