"""Routes of the JSON API. A new module of routes is one more entry in `ROUTERS`."""

from fastapi import APIRouter, Depends

from tarsy_scoring.web.api import browse, drift, labels, ledger, live, probes, scores, tarsy
from tarsy_scoring.web.queries import known_parameters_once

_scoring = APIRouter(dependencies=[Depends(known_parameters_once)])
for _module in (scores, browse, drift, ledger, labels):
    _scoring.include_router(_module.router)

# TARSy's spelling ignores unknown parameters as TARSy does, and a WebSocket has none.
ROUTERS = (_scoring, probes.router, tarsy.router, live.router)
