"""Subscriptions by channel, and sending to them: a message for several clients is encoded once."""

import time
from collections.abc import Iterable, Sequence

from tarsy_scoring.live.client import Chunk, Client
from tarsy_scoring.live.events import LiveEvent
from tarsy_scoring.telemetry.metrics import Metrics


class Subscriptions:
    """Subscriptions by channel in this process."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._subscribers: dict[str, set[Client]] = {}

    def add(self, client: Client, channel: str) -> None:
        """Subscribe a client. Idempotent."""
        if channel not in client.channels:
            client.channels.add(channel)
            self._subscribers.setdefault(channel, set()).add(client)
            self._metrics.gateway_subscriptions.inc()

    def remove(self, client: Client, channels: Iterable[str]) -> None:
        """Unsubscribe a client from these channels. Idempotent."""
        for channel in client.channels.intersection(channels):
            client.channels.discard(channel)
            self._subscribers[channel].discard(client)
            if not self._subscribers[channel]:
                del self._subscribers[channel]
            self._metrics.gateway_subscriptions.dec()

    def send(self, events: Sequence[LiveEvent]) -> None:
        """Send events, in order, to subscribers, once per client."""
        wanted: dict[
            Client, list[str]
        ] = {}  # each client with the channels on which it gets some of the events
        for channel in dict.fromkeys(c for e in events for c in e.channels):
            for client in self._subscribers.get(channel, ()):
                wanted.setdefault(client, []).append(channel)
        # Most clients are subscribed to the same channels, so few selections serve all of them.
        selections: dict[tuple[str, ...], tuple[list[LiveEvent], Chunk]] = {}
        for client, channels in wanted.items():
            key = tuple(channels)
            if key not in selections:
                selected = [e for e in events if not set(channels).isdisjoint(e.channels)]
                selections[key] = selected, Chunk([e.text for e in selected])
            selected, chunk = selections[key]
            if client.is_holding:
                client.hold_back(selected)
            else:
                client.offer(chunk)
        if wanted:
            now_us = time.time() * 1e6
            for event in events:
                self._metrics.gateway_lag.observe(max(0.0, now_us - event.emitted_us) / 1e6)
