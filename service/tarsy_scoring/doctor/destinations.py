"""The check of destinations: whether their servers can be reached. It sends them nothing."""

import asyncio
import os
import ssl
from urllib.parse import urlsplit

from tarsy_scoring.config.settings import Settings
from tarsy_scoring.config.urls import proxy_of_environment
from tarsy_scoring.deliveries.destinations import Destination, open_destinations
from tarsy_scoring.doctor.checks import Check, Fault, NotChecked

CONNECT_S = 5.0


def destination_checks(settings: Settings) -> list[Check]:
    """One check for all destinations; none without destinations."""

    async def destinations() -> str:
        opened = open_destinations(settings, os.environ)
        answers = await asyncio.gather(*map(_connect, opened))
        found = "; ".join(f"{d.name}: {words}" for d, (words, _) in zip(opened, answers, strict=True))
        if any(is_away for _, is_away in answers):
            raise Fault(found, "check the address, the network to it and its certificate (ca_file)")
        if all(words.startswith("behind") for words, _ in answers):
            raise NotChecked(found)
        return found

    return (
        [Check("destinations", destinations, target="the destinations")]
        if settings.config.destinations
        else []
    )


async def _connect(destination: Destination) -> tuple[str, bool]:
    """
    Connect, with TLS where the address has it; returns what came of it, without the address, and if it
    failed.
    """
    url = destination.sender.address()
    if proxy_of_environment(url) is not None:
        return "behind a proxy, not checked", False
    place = urlsplit(url)
    is_tls = place.scheme == "https"
    try:
        async with asyncio.timeout(CONNECT_S):
            tls = destination.sender.tls if is_tls else None
            port = place.port or (443 if is_tls else 80)
            _, writer = await asyncio.open_connection(place.hostname, port, ssl=tls)
            writer.close()
    except TimeoutError:
        return f"no connection within {CONNECT_S:g} s", True
    except ssl.SSLError as error:
        return f"its certificate is not trusted ({error.reason or type(error).__name__})", True
    except OSError as error:
        return f"no connection ({type(error).__name__})", True
    return "can be reached", False
