"""Routes for the JSON API. A new module adds one entry to `ROUTERS`."""

from tarsy_scoring.config.studies_extra import load_studies
from tarsy_scoring.web.api import browse, dead_letters, labels, ledger, live, probes, scores, tarsy

_studies = load_studies("drift_api")

ROUTERS = (
    scores.router,
    browse.router,
    browse.figures,
    dead_letters.router,
    *((_studies.router,) if _studies else ()),
    ledger.router,
    labels.router,
    probes.router,
    tarsy.router,
    live.router,
)
