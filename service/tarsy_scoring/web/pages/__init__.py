"""Server-rendered HTML pages."""
