"""The service's own database: connection pool, batched writes, notifications, migrations."""
