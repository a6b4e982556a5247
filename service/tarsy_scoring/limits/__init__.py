"""What the fleet may spend on judges: rates, concurrency, budgets, open circuits."""
