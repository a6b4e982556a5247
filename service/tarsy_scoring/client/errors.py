"""Errors of the client. Each type is one reaction of the caller."""


class ApiError(Exception):
    """
    The API refused a request, or could not be reached. The message is the API's own, with what would help.

    Attributes:
        status: HTTP status; None if there was no answer.
        type: Kind of the problem, such as `urn:tarsy-scoring:problem:unknown-session`; None if the answer
            names none.
        request_id: Id of the request in the log of the API; None if there was no answer.
        retry_after_s: Seconds after which the same request may succeed; None if the API does not say.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        type: str | None = None,  # the name of RFC 9457
        request_id: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.type = type
        self.request_id = request_id
        self.retry_after_s = retry_after_s


class Unauthorised(ApiError):
    """401 or 403: the token is missing, wrong or expired, or its scope does not allow the request."""


class NotFound(ApiError):
    """404: there is no such session or score, or the session was erased."""


class Conflict(ApiError):
    """409: another score of the session is open, or the score has ended already."""


class RequestRefused(ApiError):
    """Any other 4xx: the request is wrong, or the session has not ended (400)."""


class TooManyRequests(ApiError):
    """429: the caller's rate is exceeded. Try again after `retry_after_s`."""


class Unavailable(ApiError):
    """The API could not be reached, broke off, is busy or failed (5xx). Try again later."""


BY_STATUS = {401: Unauthorised, 403: Unauthorised, 404: NotFound, 409: Conflict, 429: TooManyRequests}
