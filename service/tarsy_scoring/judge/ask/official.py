"""
Asks a provider through the official client of the API, which tells a fault of our client from one of the
endpoint.

The only importer of `openai`. The import takes 0.9 s of CPU and 25 MB, so only `doctor` does it, after a
failed call.
"""

import ssl

from tarsy_scoring.config.settings import ProviderSettings


async def ask_officially(
    settings: ProviderSettings, api_key: str | None, text: str, timeout_s: float
) -> str | None:
    """
    Ask once.

    Returns:
        The type of the client's error; None: the model answered.
    """
    import openai

    verify = ssl.create_default_context(cafile=settings.ca_file) if settings.ca_file else True
    async with (
        openai.DefaultAsyncHttpxClient(proxy=settings.proxy, verify=verify) as transport,
        openai.AsyncOpenAI(
            api_key=api_key or "none",
            base_url=settings.base_url,
            default_headers=settings.extra_headers,
            http_client=transport,
            max_retries=0,
            timeout=timeout_s,
        ) as client,
    ):
        try:
            await client.chat.completions.create(
                model=settings.model, messages=[{"role": "user", "content": text}]
            )
        except openai.OpenAIError as error:
            return type(error).__name__
    return None
