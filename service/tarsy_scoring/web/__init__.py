"""The HTTP application: access, middleware, API routes and pages."""
