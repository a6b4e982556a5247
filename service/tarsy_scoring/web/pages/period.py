"""The form with chain, criteria and days, and the response, that pages across sessions share."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl, urlencode

from fastapi import Request
from starlette.responses import HTMLResponse

from tarsy_scoring.analytics.daily import Selection, count_recounted
from tarsy_scoring.web.context import context_of
from tarsy_scoring.web.pages.forms import chain_names
from tarsy_scoring.web.pages.rendering import page
from tarsy_scoring.web.queries import DAYS, ScoresQuery, SelectionQuery, TrendsQuery, read_form

DAYS_SHOWN = 90  # when the address names no day
FIELDS = ("chain", "criteria", "since", "until")


@dataclass(frozen=True, slots=True)
class Choice:
    """
    One more form field for a page.

    Args:
        model: API query that has the field.
        options: Labels by value. The first is the default.
    """

    model: type[SelectionQuery]
    name: str
    label: str
    options: Mapping[str, str]


DAY_OF = Choice(
    TrendsQuery, "day_of", "Day on which", {"scored": "it was scored", "ended": "its session ended"}
)
KIND = Choice(
    ScoresQuery, "reference", "Judged", {"without": "without a reference", "with": "against a reference"}
)


@dataclass(frozen=True, slots=True)
class PeriodForm:
    """
    The form as read from the address.

    Args:
        values: Field texts as given, to fill the form again.
        selection: All scores if there are faults.
        choices: The page's own fields with their values.
        faults: Errors for the user. The page shows no numbers then.
    """

    values: Mapping[str, str]
    selection: Selection
    choices: Sequence[tuple[Choice, str]] = ()
    faults: list[str] = field(default_factory=list)

    @property
    def chosen(self) -> str:
        """The value chosen in the first own field; empty without one."""
        return self.choices[0][1] if self.choices else ""

    @property
    def period(self) -> str:
        """The form's days in words."""
        since, until = self.values["since"], self.values["until"]
        if since and until:
            return f"{since} to {until}"
        return f"since {since}" if since else f"until {until}" if until else "all time"

    @property
    def all_time(self) -> str:
        """Query string for the same form without days."""
        return self.query_with(since="", until="")

    def query_with(self, **values: str) -> str:
        """Query string for the same form with other values in some fields."""
        own = {choice.name: chosen for choice, chosen in self.choices if chosen != next(iter(choice.options))}
        return urlencode({**self.values, **own, **values})


def read_period_form(query_string: bytes, today: date, *choices: Choice) -> PeriodForm:
    """
    Read a page address. Without `since` and `until` it means the last `DAYS_SHOWN` days.

    An empty `since` means all time, so that users can clear the day.

    Args:
        choices: The page's own fields. The query of the first one must have all of them.
    """
    pairs = parse_qsl(query_string.decode("ascii", "replace"), keep_blank_values=True, errors="replace")
    if not {name for name, _ in pairs} & set(DAYS):
        first = f"since={today - timedelta(days=DAYS_SHOWN - 1)}".encode()
        query_string = query_string + b"&" + first if query_string else first
    names = (*FIELDS, *(choice.name for choice in choices))
    model = choices[0].model if choices else SelectionQuery
    form = read_form(query_string, model, names)
    chosen = [(choice, form.values[choice.name] or next(iter(choice.options))) for choice in choices]
    values = {name: form.values[name] for name in FIELDS}
    return PeriodForm(values, (form.query or SelectionQuery()).selection(), chosen, form.faults)


def requested_period(request: Request, *choices: Choice) -> PeriodForm:
    """The requested form, with days relative to the current UTC day."""
    return read_period_form(request.scope["query_string"], datetime.now(UTC).date(), *choices)


async def period_page(request: Request, template: str, form: PeriodForm, **values: Any) -> HTMLResponse:
    """
    A page that extends `period.html`; 422 if the form has faults.

    Args:
        template: Its name is the page's path, with `_` for `-`.

    Raises:
        DatabaseAway: See `Database.once`.
    """
    context = context_of(request)
    return await asyncio.to_thread(  # rendering many rows would block the event loop
        page,
        template,
        422 if form.faults else 200,
        here="/" + template.removesuffix(".html").replace("_", "-"),
        form=form,
        chains=await chain_names(context),
        criteria_names=sorted(context.policy.hashes),
        recounted=0 if form.faults else await count_recounted(context.analytics.database, form.selection),
        **values,
    )
