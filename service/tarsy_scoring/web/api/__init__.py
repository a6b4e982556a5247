"""Routes for the JSON API. `web.app.ROUTERS` lists them."""
