"""The inputs of a model as they come over HTTP: images as files, texts in JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from hydractl.data.files import TooManyPixels, decoded_image
from hydractl.errors import HydraError
from hydractl.model.runtime import HydraModel
from hydractl.serving.bodies import form_parts, size_of_text, texts_of
from hydractl.serving.limits import RequestRefused, ServiceLimits


@dataclass(frozen=True)
class PreparedInput:
    """One input that a batch can take.

    Attributes:
        content: what :meth:`InputKind.joined` takes.
        weight: how much of a batch it fills beside its place: bytes of text; 0 for an image.
    """

    content: Any
    weight: int = 0


class InputKind(Protocol):
    """One kind of inputs.

    Attributes:
        content_types: of the bodies that hold such inputs, for the description of the service.
    """

    content_types: Sequence[str]

    def inputs_of(self, body: bytes, content_type: str) -> list[Any]:
        """Return the inputs of a body, as they are.

        Raises:
            RequestRefused: the body holds none of this kind, or more than the limits allow.
        """

    def prepared(self, raw: Any, position: int) -> PreparedInput:
        """Return one input, ready for a batch. It runs in several threads, and by itself.

        Args:
            raw: one of :meth:`inputs_of`.
            position: which one.

        Raises:
            RequestRefused: it cannot be read.
        """

    def joined(self, contents: Sequence[Any]) -> Any:
        """Return the batch of some inputs as the model takes it. It runs in the thread of the model."""


def kind_of_inputs(model: HydraModel, limits: ServiceLimits) -> InputKind:
    """Return the kind of inputs that a model reads."""
    if model.description.reads == "text":
        return TextInputs(model, limits)
    return ImageInputs(model, limits)


class ImageInputs:
    """Images: each part of a form, or the whole body.

    They are decoded as ``predict`` decodes a file, and brought to the size of the model at once: no more decoded images
    are in memory than there are threads.
    """

    content_types: Sequence[str] = ("multipart/form-data", "image/*", "application/octet-stream")

    def __init__(self, model: HydraModel, limits: ServiceLimits) -> None:
        self._model = model
        self._limits = limits

    def inputs_of(self, body: bytes, content_type: str) -> list[bytes]:
        media_type = media_type_of(content_type)
        if media_type == "multipart/form-data":
            return form_parts(body, content_type, self._limits.max_inputs)
        if media_type == "application/octet-stream" or media_type.startswith("image/"):
            return [body]
        raise _unsupported("this model reads images, as", self.content_types)

    def prepared(self, raw: bytes, position: int) -> PreparedInput:
        try:
            image = decoded_image(raw, self._limits.max_pixels)
            return PreparedInput(self._model.preprocess([image]))
        except TooManyPixels:
            too_many = f"input {position} has more than {self._limits.max_pixels:,} pixels"
            raise RequestRefused(413, too_many, position) from None
        except MemoryError:
            raise
        # A damaged file makes the decoders raise nearly anything, in words that quote it.
        except Exception:
            raise RequestRefused(422, f"input {position} is no image that can be decoded", position) from None

    def joined(self, contents: Sequence[Any]) -> Any:
        first = contents[0]
        if isinstance(first, Tensor):
            return torch.cat(list(contents))
        # A model that looks at the shape of each image takes several tensors by name.
        batch = {}
        for name in first:
            batch[name] = torch.cat([content[name] for content in contents])
        return batch


class TextInputs:
    """Texts, or pairs of texts, in a JSON body.

    A tokenizer cannot be called by two threads, and pads to the longest text of a batch: texts become tokens where they
    become a batch.
    """

    content_types: Sequence[str] = ("application/json",)

    def __init__(self, model: HydraModel, limits: ServiceLimits) -> None:
        self._model = model
        self._limits = limits

    def inputs_of(self, body: bytes, content_type: str) -> list[str | tuple[str, str]]:
        if media_type_of(content_type) not in self.content_types:
            raise _unsupported("this model reads texts, as", self.content_types)
        return texts_of(body, self._limits.max_inputs, self._limits.max_text)

    def prepared(self, raw: str | tuple[str, str], position: int) -> PreparedInput:
        return PreparedInput(raw, size_of_text(raw))

    def joined(self, contents: Sequence[Any]) -> Any:
        return self._model.preprocess(list(contents))


def media_type_of(content_type: str) -> str:
    """Return the type that a head names, without its parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


def _unsupported(start: str, content_types: Sequence[str]) -> RequestRefused:
    """Return the refusal of a body of another type."""
    return RequestRefused(415, f"{start} {' or '.join(content_types)}")


def refusal_of(error: Exception, position: int) -> RequestRefused:
    """Return what a client hears of an input that the model itself fails at, when it runs alone.

    An error of hydractl is one of the input: a text without tokens, numbers that overflow. Its words may quote it.
    """
    if isinstance(error, HydraError):
        return RequestRefused(422, f"the model has no answer for input {position}", position)
    return RequestRefused(500, f"the model failed at input {position}", position)
