"""Routes of the JSON API. A new module of routes is one more entry in `ROUTERS`."""

from tarsy_scoring.web.api import browse, dead_letters, drift, labels, ledger, live, probes, scores, tarsy

ROUTERS = (
    scores.router,
    browse.router,
    browse.figures,
    dead_letters.router,
    drift.router,
    ledger.router,
    labels.router,
    probes.router,
    tarsy.router,
    live.router,
)
