"""Server-rendered HTML pages. `registry.PAGES` lists them."""
