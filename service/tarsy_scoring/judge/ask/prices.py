"""
Costs calls, at configured prices or else at the model's published prices.
"""

from urllib.parse import urlsplit

from genai_prices import Usage

from tarsy_scoring.config.chains import ProviderSettings
from tarsy_scoring.evaluation.agent_cost import published_usd


class Prices:
    """
    Prices for one provider's model; unknown where neither the configuration nor `genai-prices` has them.

    Published prices belong to the provider behind the base URL. They are unknown behind a gateway, on a
    private server and for an unknown model. They may rise with the length of the prompt.
    """

    def __init__(self, settings: ProviderSettings) -> None:
        self._settings = settings
        self._configured = settings.prices_usd_per_million_tokens
        self._is_published = (
            self._configured is None
            and not _is_private(settings.base_url)
            and self._published_usd(1, 0, 1) is not None
        )

    @property
    def are_known(self) -> bool:
        return self._configured is not None or self._is_published

    def cost_usd(self, read: int | None, cached: int | None, written: int | None) -> float | None:
        """
        What a call costs; None where prices or usage are unknown.

        Args:
            read: Input tokens, including those served from the cache.
            cached: Input tokens from the cache; where unknown, all input is charged in full.
            written: Output tokens, including reasoning.
        """
        if read is None or written is None:
            return None
        cached = min(cached or 0, read)
        if self._configured is None:
            return self._published_usd(read, cached, written) if self._is_published else None
        prices = self._configured
        cached_price = prices.input if prices.cached_input is None else prices.cached_input
        return ((read - cached) * prices.input + cached * cached_price + written * prices.output) / 1e6

    def _published_usd(self, read: int, cached: int, written: int) -> float | None:
        usage = Usage(input_tokens=read, cache_read_tokens=cached, output_tokens=written)
        return published_usd(usage, self._settings.model, self._settings.base_url)


def _is_private(base_url: str) -> bool:
    """Whether the host is an IP address or a bare name, which public providers do not use."""
    host = urlsplit(base_url).hostname or ""
    return "." not in host or ":" in host or host.rpartition(".")[2].isdigit()
