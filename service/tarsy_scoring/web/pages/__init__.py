"""Server-rendered HTML pages. A new page is a module with a `router` and one more entry in `ROUTERS`."""

from tarsy_scoring.web.pages import drift, insights, labelling, ledger, router

ROUTERS = (router.router, insights.router, drift.router, labelling.router, ledger.router)
problem_page = router.problem_page
