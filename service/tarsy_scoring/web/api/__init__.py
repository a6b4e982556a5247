"""Routes for the JSON API. `registry.ROUTERS` lists them."""
