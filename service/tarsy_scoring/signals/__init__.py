"""Rolling figures per chain over scoring events (faust-streaming)."""
