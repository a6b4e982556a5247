"""HTTP, WebSocket and pages: how people and programs ask, look and follow."""
