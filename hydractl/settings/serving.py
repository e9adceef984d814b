"""The options of ``serve``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from hydractl.settings.common import Batched
from hydractl.settings.option import option

serve_option = partial(option, "Serving")
limit_option = partial(option, "Limits of a request")


@dataclass(kw_only=True)
class ServeSettings(Batched):
    """Options of ``serve``."""

    verb: ClassVar[str] = "serve"
    lacks: ClassVar[tuple[str, ...]] = ("output", "data", "limit", "tower", "force", "workers", "seed")

    host: str = serve_option(
        "The address to serve at; 0.0.0.0 is every address of this machine, open to whoever reaches it",
        "127.0.0.1",
        metavar="ADDRESS",
        often=True,
    )
    port: int = serve_option("The port; 0 is a free one", 8000, at_least=0, at_most=65535, often=True)
    wait: float = serve_option(
        "How long an input waits for others to be computed with [milliseconds]", 2.0, at_least=0, at_most=1000
    )
    windows: str | None = serve_option(
        "Append to F, a line of JSON each, how every thousand inputs compare with the reference that calibrate stored",
        metavar="F.jsonl",
    )
    queue: int = serve_option(
        "Requests that are read, decoded or waiting at a time; the next one is refused with status 503 [requests]",
        64,
        at_least=1,
        often=True,
    )
    max_body: float = limit_option("Size of its body [MiB]", 16.0, above=0, often=True)
    max_inputs: int = limit_option("Its inputs [inputs]", 32, at_least=1, often=True)
    max_pixels: float = limit_option(
        "Pixels of an image, by its header, before it is decoded [megapixels]", 25.0, above=0, often=True
    )
    max_text: float = limit_option("Its texts together, in UTF-8 [kB]", 100.0, above=0)
    max_seconds: float = limit_option(
        "From its head to its answer, reading included [seconds]", 10.0, above=0, at_most=3600, often=True
    )
