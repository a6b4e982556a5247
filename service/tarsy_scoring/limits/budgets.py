"""Daily budgets: the amount left, in numbers and in words, and which budgets cannot work."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import ConfigurationError

# After the call deadline; an older reservation was abandoned and is unlikely to be released.
SETTLED_WITHIN_S = 60.0
NO_PRICE = "a daily budget needs prices, and no prices are known for the provider {!r}: set its prices_usd_per_million_tokens"


@dataclass(slots=True)
class DayBudget:
    """
    Money for one UTC day, for one chain or for all.

    Args:
        day_left_s: Seconds until the next UTC day.
        limit: USD; None for unlimited.
        charged: USD spent plus USD reserved for running calls.
        reserved: The unsettled part of `charged`.
        is_moving: Whether running calls may still release money.
        whose: The owner, in words for messages.
        added: USD reserved in this transaction, in addition to `charged`.
    """

    day: date
    day_left_s: float
    limit: Decimal | None
    charged: Decimal
    reserved: Decimal
    is_moving: bool
    whose: str
    added: Decimal = Decimal()

    @classmethod
    def of(cls, row: Mapping[str, Any], settings: Settings) -> "DayBudget":
        """Build it from a row; `reserved_for_s` is how old the latest reservation is, in seconds."""
        config, chain_id = settings.config, row["chain_id"]
        limit, whose = settings.chain(chain_id).daily_budget_usd, f"chain {chain_id!r}"
        if row["scope"] == "all":
            limit, whose = config.budget.daily_usd, "all chains"
        longest_s = max(p.timeout_s for p in config.providers.values()) + SETTLED_WITHIN_S
        return cls(
            day=row["day"],
            day_left_s=row["day_left_s"],
            limit=None if limit is None else exact_usd(limit),
            charged=row["charged_usd"],
            reserved=row["reserved_usd"],
            is_moving=row["reserved_for_s"] is not None and row["reserved_for_s"] < longest_s,
            whose=whose,
        )

    @property
    def left(self) -> Decimal:
        """USD that may still be reserved."""
        return Decimal("Infinity") if self.limit is None else self.limit - self.charged - self.added

    def may_have_later(self, usd: Decimal) -> bool:
        """Whether `usd` would fit today if every running call cost nothing."""
        settled = self.charged - self.reserved if self.is_moving or self.added else self.charged
        return self.limit is None or settled + usd <= self.limit


def require_affordable(settings: Settings, most_usd: Mapping[str, float | None]) -> None:
    """
    Refuse budgets that cannot work: without prices, or too small for a single call.

    Args:
        most_usd: Upper cost bound of a call that fills the window, by provider; None without known prices.

    Raises:
        ConfigurationError: Naming the budget and the provider.
    """
    config = settings.config
    for where, chain in config.named_chains.items():
        budgets = {
            "budget.daily_usd": config.budget.daily_usd,
            f"{where}.daily_budget_usd": chain.daily_budget_usd,
        }
        for name, budget in budgets.items():
            for provider in chain.providers if chain.judge and budget is not None else ():
                most = most_usd[provider]
                if most is None:
                    raise ConfigurationError(f"{name}: {NO_PRICE.format(provider)}")
                if budget is not None and budget < most:
                    raise ConfigurationError(
                        f"{name}: {budget:g} USD is less than one call that fills the window of {provider!r} may cost "
                        f"({most:.4f} USD); raise it, or lower context_window_tokens or max_reply_tokens"
                    )


def state_of_budget(whose: str, left: Decimal, limit: Decimal | None) -> str:
    """What a daily budget has left, in words."""
    return f"the daily budget of {whose} has {max(left, Decimal()):.4f} of {limit} USD left"


def exact_usd(amount: float) -> Decimal:
    """Convert USD without rounding error, so that sums over many calls do not drift."""
    return Decimal(repr(amount))
