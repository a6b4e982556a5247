"""The proxies through which the HTTP addresses of settings are reached."""

from urllib.parse import urlsplit


def proxy_of_environment(url: str) -> str | None:
    """
    The proxy for this URL by `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY`.

    With `trust_env` an HTTP client would read them in a thread for each request, which takes longer than the
    request.
    """
    from urllib.request import getproxies, proxy_bypass  # it loads an HTTP client, which settings do not need

    place = urlsplit(url)
    port = place.port or {"http": 80, "https": 443}[place.scheme]
    if proxy_bypass(f"{place.hostname}:{port}"):
        return None
    proxies = getproxies()
    return proxies.get(place.scheme) or proxies.get("all")
