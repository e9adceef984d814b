"""The limits of what the service accepts, and the exceptions of requests without an answer."""

from __future__ import annotations

from dataclasses import dataclass

BYTES_OF_A_MEBIBYTE = 1 << 20
PIXELS_OF_A_MEGAPIXEL = 1_000_000
BYTES_OF_A_KILOBYTE = 1_000


@dataclass(frozen=True)
class ServiceLimits:
    """The limits of one request, and of all requests at the same time.

    Attributes:
        max_body: bytes in the body of a request.
        max_inputs: inputs in a request.
        max_pixels: pixels of an image.
        max_text: bytes of all texts in a request, in UTF-8.
        max_seconds: seconds from the head of a request to its answer, with the time to read the body.
        max_requests: requests that are being read, decoded or waiting at the same time.
    """

    max_body: int = 16 * BYTES_OF_A_MEBIBYTE
    max_inputs: int = 32
    max_pixels: int = 25 * PIXELS_OF_A_MEGAPIXEL
    max_text: int = 100 * BYTES_OF_A_KILOBYTE
    max_seconds: float = 10
    max_requests: int = 64

    def to_json(self) -> dict[str, float]:
        """Return the limits, in the units of the attributes."""
        return {
            "body_bytes": self.max_body,
            "inputs": self.max_inputs,
            "pixels": self.max_pixels,
            "text_bytes": self.max_text,
            "seconds": self.max_seconds,
            "requests": self.max_requests,
        }


class RequestRefused(Exception):
    """A request that gets no prediction.

    Args:
        status: the HTTP status of the answer.
        message: what is wrong; it must not quote the request.
        position: the index of the input at fault; None for the whole request.
        retry: whether the same request may succeed a moment later.
    """

    def __init__(self, status: int, message: str, position: int | None = None, *, retry: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.position = position
        self.retry = retry


class Disconnected(Exception):
    """The client has gone away before its answer."""
