"""A service: the answers of a model over HTTP, by FastAPI and uvicorn.

    pip install hydractl 'fastapi>=0.165' python-multipart uvicorn
    python server.py best.st                               # at http://127.0.0.1:8000; Ctrl-C ends it

    curl -F image=@cat.jpg -F image=@dog.jpg http://127.0.0.1:8000/predict
    curl -d '{"texts": ["a fine film", ["a premise", "its hypothesis"]]}' http://127.0.0.1:8000/predict

The inputs of one request are one batch, so a broken input fails the request that it came in, and no other. Nothing here
asks for a password or encrypts: a proxy in front of it does, and gives up on clients that do not read their answer.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import uvicorn
from fastapi import FastAPI, Request
from PIL import Image
from pydantic import BaseModel, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

import hydractl
from hydractl.data.files import opened_image
from hydractl.errors import HydraError
from hydractl.model.runtime import HydraModel, move

MOST_BYTES = 16 << 20  # of the body of a request
MOST_INPUTS = 32  # of a request
MOST_PIXELS = 25_000_000  # of all images of a request
MOST_TEXT = 100_000  # bytes of the body, where the model reads texts
MOST_REQUESTS = 64  # that are read, decoded or waiting; the next one is refused
MOST_SECONDS = 10  # from the head of a request to its answer


class Texts(BaseModel):
    """The body of a request for texts and pairs of texts."""

    texts: Annotated[list[str | tuple[str, str]], Field(min_length=1, max_length=MOST_INPUTS)]


def application(model: HydraModel) -> FastAPI:
    """Return the ASGI application of a model, which answers at ``/predict`` and ``/health``."""
    read, prepare, threads = files_of, decoded, 4
    if model.description.reads == "text":
        read, prepare, threads = texts_of, tokenized, 1  # a tokenizer cannot be called by two threads
    preparing = ThreadPoolExecutor(threads)
    computing = ThreadPoolExecutor(1)
    places = asyncio.Semaphore(MOST_REQUESTS)
    app = FastAPI(max_body_size=MOST_BYTES, openapi_url=None)

    # FastAPI quotes an input that it has parsed itself in its errors, so it is asked for the request alone.
    @app.post("/predict")
    async def predict(request: Request) -> dict[str, Any]:
        again = {"Retry-After": "1"}
        if places.locked():
            raise HTTPException(503, "too many requests are waiting; ask again in a moment", again)
        loop = asyncio.get_running_loop()
        try:
            async with places, asyncio.timeout(MOST_SECONDS):
                samples = await read(request)
                inputs = await loop.run_in_executor(preparing, prepare, model, samples)
                return {"predictions": await loop.run_in_executor(computing, rows_of, model, inputs)}
        except TimeoutError:
            raise HTTPException(503, f"no answer within {MOST_SECONDS} seconds", again) from None
        except ClientDisconnect:
            raise HTTPException(400, "the client has gone away") from None

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    return app


async def files_of(request: Request) -> list[bytes]:
    """Return the files of a form; a request with any other body is refused."""
    try:
        async with request.form(max_files=MOST_INPUTS, max_fields=0) as form:
            files = [await file.read() for _, file in form.multi_items() if not isinstance(file, str)]
    except HTTPException as error:
        if error.status_code == 413:  # the body is too large
            raise
        files = []  # the parser's own words may quote the body
    if not files:
        raise HTTPException(400, f"the body is no multipart/form-data with 1 to {MOST_INPUTS} files")
    return files


async def texts_of(request: Request) -> list[str | tuple[str, str]]:
    """Return the texts, and pairs of texts, of a JSON document; a request with any other body is refused."""
    body = await request.body()
    if len(body) > MOST_TEXT:
        raise HTTPException(413, f"the body has more than {MOST_TEXT:,} bytes")
    try:
        return Texts.model_validate_json(body).texts
    except ValidationError:
        example = '{"texts": ["a text", ["a text", "its pair"]]}'
        raise HTTPException(400, f"the body is no JSON like {example} with 1 to {MOST_INPUTS} entries") from None


def decoded(model: HydraModel, files: list[bytes]) -> Any:
    """Return image files as inputs of the model; their pixels are counted by the headers, before any is decoded."""
    images = []
    pixels = 0
    for position, file in enumerate(files):
        try:
            image = opened_image(file)
            pixels += image.width * image.height
            if pixels > MOST_PIXELS:
                raise Image.DecompressionBombError
            image.load()
            images.append(image)
        except Image.DecompressionBombError:
            raise HTTPException(413, f"the images have more than {MOST_PIXELS:,} pixels") from None
        except Exception:  # for a broken file decoders raise nearly anything, and quote the file
            raise HTTPException(422, f"input {position} is no image that can be decoded") from None
    return model.preprocess(images)


def tokenized(model: HydraModel, texts: list[str | tuple[str, str]]) -> Any:
    """Return texts as inputs of the model."""
    try:
        return model.preprocess(texts)
    except HydraError:  # no error of a tokenizer is of another kind
        raise HTTPException(422, "the tokenizer cannot read the texts") from None


def rows_of(model: HydraModel, inputs: Any) -> list[dict[str, Any]]:
    """Return the answers to a batch, a dictionary for each input."""
    weight = next(model.parameters())
    try:
        answer = model.predict(move(inputs, weight.device, weight.dtype))
    except HydraError:  # its logits are not finite, for example
        raise HTTPException(422, "the model has no answer for an input") from None
    columns: dict[str, list[Any]] = {"predicted": answer.predicted_labels, "confidence": answer.confidence.tolist()}
    columns |= {"entropy": answer.entropy.tolist(), "mi": answer.mi.tolist()}
    if answer.ood_score is not None:
        columns["ood_score"] = answer.ood_score.tolist()
    if answer.is_ood is not None:
        columns["is_ood"] = answer.is_ood.tolist()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 is open to every machine that reaches this one")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # it would quote bodies
    app = application(hydractl.load(options.model, device=options.device))
    uvicorn.run(
        app,
        host=options.host,
        port=options.port,
        access_log=False,
        server_header=False,
        limit_concurrency=512,  # connections
        timeout_graceful_shutdown=MOST_SECONDS + 1,  # requests that have begun still get their answers
    )


if __name__ == "__main__":
    main()
