"""
Pushes scoring events to WebSocket clients, with catch-up.

`gateway` orders events and serves clients, `stored` reads events from the database, `client` is one
connection, `subscriptions` shares messages among clients, `events` maps events to channels.
"""
