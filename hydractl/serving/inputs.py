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
    """One input that is ready for a batch.

    Attributes:
        content: the input in the form that :meth:`InputKind.joined` takes.
        weight: how much of the weight limit of a batch it uses: bytes of text; 0 for an image.
    """

    content: Any
    weight: int = 0


class InputKind(Protocol):
    """One kind of inputs, from the body of a request to a batch.

    Attributes:
        content_types: the types of the bodies that hold such inputs, for the description of the service.
    """

    content_types: Sequence[str]

    def inputs_of(self, body: bytes, content_type: str) -> list[Any]:
        """Return the inputs of a body, not yet decoded.

        Raises:
            RequestRefused: the body holds no inputs of this kind, or more than the limits allow.
        """

    def prepared(self, raw: Any, position: int) -> PreparedInput:
        """Return one input, ready for a batch. It is called in several threads.

        Args:
            raw: an input that :meth:`inputs_of` returned.
            position: its index in the body, for messages.

        Raises:
            RequestRefused: the input cannot be decoded.
        """

    def joined(self, contents: Sequence[Any]) -> Any:
        """Return several prepared inputs as one batch for the model. It is called in the thread of the model."""


def kind_of_inputs(model: HydraModel, limits: ServiceLimits) -> InputKind:
    """Return the kind of inputs that a model reads."""
    if model.description.reads == "text":
        return TextInputs(model, limits)
    return ImageInputs(model, limits)


class ImageInputs:
    """Images: each part of a form, or the whole body.

    They are decoded in the same way as ``predict`` decodes a file, and immediately resized for the model. So there are
    never more decoded images in memory than threads.
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
        # For a damaged file the decoders may raise nearly any error, whose text may quote the file.
        except Exception:
            raise RequestRefused(422, f"input {position} is no image that can be decoded", position) from None

    def joined(self, contents: Sequence[Any]) -> Any:
        first = contents[0]
        if isinstance(first, Tensor):
            return torch.cat(list(contents))
        # Models that use the shape of each image take several tensors by name.
        batch = {}
        for name in first:
            batch[name] = torch.cat([content[name] for content in contents])
        return batch


class TextInputs:
    """Texts, or pairs of texts, in a JSON body.

    A tokenizer cannot be called by two threads, and pads texts to the longest text of a batch. So texts are tokenized
    only when they are joined to a batch.
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
    """Return the type in a ``Content-Type``, without its parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


def _unsupported(start: str, content_types: Sequence[str]) -> RequestRefused:
    """Return the refusal of a body with another content type."""
    return RequestRefused(415, f"{start} {' or '.join(content_types)}")


def refusal_of(error: Exception, position: int) -> RequestRefused:
    """Return the refusal for an input at which the model itself fails, when it runs alone.

    An error of hydractl is due to the input: a text without tokens, or numbers that overflow. Its message is not sent,
    because it may quote the input.
    """
    if isinstance(error, HydraError):
        return RequestRefused(422, f"the model has no answer for input {position}", position)
    return RequestRefused(500, f"the model failed at input {position}", position)
