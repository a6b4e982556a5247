"""
Scoring events pushed to WebSocket clients, with catch-up.

`gateway` orders events and serves clients, `stored` reads what the database has, `client` is one connection,
`subscriptions` shares messages among clients, `events` maps events to channels, `signals` is the channel
`insights`.
"""
