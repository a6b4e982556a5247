"""Everything that knows TARSy's tables or HTTP API."""
