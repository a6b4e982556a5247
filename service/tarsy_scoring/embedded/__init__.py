"""PostgreSQL, a broker and a scripted judge in packages, for demo, stack and tests. Never for production."""
