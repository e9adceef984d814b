"""The service over HTTP: what is asked for under which path, and with which status it is answered."""

from __future__ import annotations

import asyncio
import contextlib
import json
import traceback
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hydractl.evaluation.predicting import LineForm, PredictionRow
from hydractl.files.version import __version__
from hydractl.report.prometheus import CONTENT_TYPE
from hydractl.serving.bodies import Body
from hydractl.serving.limits import Disconnected, RequestRefused
from hydractl.serving.service import ModelService

_MOST_TOP = 1000
_CLIENT_GONE = 499
"""The status that a request is counted under whose client did not wait; nobody receives it."""

_NO_TELEMETRY: dict[str, Any] = {
    "telemetry": {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
}
"""FastAPI would tell an OpenTelemetry provider of the process about every request; older versions do not know it."""

_REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"description": "The body or the query cannot be read"},
    408: {"description": "The body came too slowly"},
    413: {"description": "The body, a text, an image or the number of inputs is too large"},
    415: {"description": "The model reads bodies of another type"},
    422: {"description": "An input is no image that can be decoded, or the model has no answer for it"},
    503: {"description": "Too many requests are waiting, or the answer took too long"},
}
"""What a request for a prediction may be refused with: ``{"error": what is wrong, "input": which one}``."""


def application(service: ModelService) -> ASGIApp:
    """Return the ASGI application of a service."""
    app = FastAPI(
        title="hydractl serve",
        version=__version__,
        lifespan=lambda _: _running(service),
        docs_url=None,  # these two pages load scripts from elsewhere
        redoc_url=None,
        **_NO_TELEMETRY,
    )

    async def predict(
        request: Request,
        top: Annotated[int, Query(ge=0, le=_MOST_TOP)] = 0,
        members: Annotated[bool, Query()] = False,
    ) -> Response:
        return await _Exchange(service, request).answer(LineForm(top=top, members=members))

    async def health() -> Response:
        if service.healthy:
            return _json_response({"status": "ok"})
        return _json_response({"status": "failed"}, status=503)

    async def about() -> Response:
        return _json_response(service.about())

    async def metrics() -> Response:
        return PlainTextResponse(service.prometheus(), media_type=CONTENT_TYPE)

    body = {"required": True, "content": {name: {} for name in service.kind.content_types}}
    app.add_api_route(
        "/predict",
        predict,
        methods=["POST"],
        summary="Predict the inputs of the body",
        responses=_REFUSALS,
        openapi_extra={"requestBody": body},
    )
    app.add_api_route("/health", health, summary="Whether inputs are answered")
    app.add_api_route("/model", about, summary="The model and its limits")
    app.add_api_route("/metrics", metrics, summary="Counters for Prometheus")
    app.add_exception_handler(HTTPException, _unknown_path)
    app.add_exception_handler(RequestValidationError, _wrong_query)
    return _Counted(app, service)


@contextlib.asynccontextmanager
async def _running(service: ModelService) -> AsyncIterator[None]:
    """Let the service answer while the server runs."""
    service.start()
    yield
    await service.stop()


class _Exchange:
    """One request for a prediction, and its answer."""

    def __init__(self, service: ModelService, request: Request) -> None:
        self._service = service
        self._headers = request.headers
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._deadline = self._began + service.limits.max_seconds
        expected = request.headers.get("expect", "").lower()
        self._body = Body(request.receive, waits_for_leave=expected == "100-continue")

    async def answer(self, form: LineForm) -> Response:
        """Return the answer, whatever it is."""
        try:
            return await self._prediction_response(form)
        except RequestRefused as refusal:
            await self._discard_rest_of_body()
            return _refusal_response(refusal, keeps_open=self._body.complete)
        except Disconnected:
            return Response(status_code=_CLIENT_GONE)
        except Exception as error:
            self._service.log.warn(f"a request failed: {type(error).__name__}")
            self._service.log.detail(traceback.format_exc())
            return _refusal_response(RequestRefused(500, "the service failed at this request"), keeps_open=False)
        finally:
            seconds = self._loop.time() - self._began
            self._service.counts.add_seconds(seconds)

    async def _prediction_response(self, form: LineForm) -> Response:
        """Return the rows of all inputs.

        Raises:
            RequestRefused: there is no such answer.
            Disconnected: the client went away.
        """
        self._service.enter()
        try:
            body = await self._read_body()
            rows = await self._rows_in_time(body, form)
        finally:
            self._service.leave()
        return _json_response({"predictions": rows})

    async def _read_body(self) -> bytes:
        """Return the body.

        Raises:
            RequestRefused: it is too large or too slow.
            Disconnected: the client went away.
        """
        limits = self._service.limits
        try:
            async with asyncio.timeout_at(self._deadline):
                return await self._body.read(limits.max_body, _declared_size(self._headers))
        except TimeoutError:
            raise RequestRefused(408, f"the body was not here within {limits.max_seconds:g} seconds") from None

    async def _rows_in_time(self, body: bytes, form: LineForm) -> list[PredictionRow]:
        """Return the rows, unless the client goes away or time is up before they are there.

        Raises:
            RequestRefused: there are none, or they come too late.
            Disconnected: the client went away.
        """
        content_type = self._headers.get("content-type", "")
        work = self._loop.create_task(self._service.rows_of(body, content_type, form))
        client_gone = self._loop.create_task(self._body.disconnected())
        try:
            seconds_left = self._deadline - self._loop.time()
            await asyncio.wait((work, client_gone), timeout=seconds_left, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            if client_gone.done():
                raise Disconnected
            seconds = self._service.limits.max_seconds
            raise RequestRefused(503, f"no answer within {seconds:g} seconds; ask again in a moment", retry=True)
        finally:
            work.cancel()
            client_gone.cancel()
            # Both end at once; what they raise has been seen, or is of no use any more.
            await asyncio.gather(work, client_gone, return_exceptions=True)

    async def _discard_rest_of_body(self) -> None:
        """Let the client send what it is sending, within its time: only then does it listen."""
        with contextlib.suppress(TimeoutError, Disconnected):
            async with asyncio.timeout_at(self._deadline):
                await self._body.discard(self._service.limits.max_body)


def _declared_size(headers: Mapping[str, str]) -> int | None:
    """Return the bytes that a body has by its head; None where it does not say."""
    text = headers.get("content-length", "")
    if not text.isdecimal():
        return None
    return int(text)


def _json_response(document: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a document as an answer."""
    content = json.dumps(document, ensure_ascii=False, allow_nan=False).encode("utf-8")
    return Response(content, status, dict(headers or {}), media_type="application/json")


def _refusal_response(refusal: RequestRefused, *, keeps_open: bool) -> Response:
    """Return a refusal as an answer.

    Args:
        refusal: what is wrong.
        keeps_open: whether the connection can be used again: the whole request has been read.
    """
    headers = {}
    if refusal.retry:
        headers["Retry-After"] = "1"
    if not keeps_open:
        headers["Connection"] = "close"
    document: dict[str, Any] = {"error": refusal.message}
    if refusal.position is not None:
        document["input"] = refusal.position
    return _json_response(document, refusal.status, headers)


async def _unknown_path(request: Request, error: Exception) -> Response:
    """Answer a request for a path or with a method that there is not."""
    assert isinstance(error, HTTPException)
    words = {404: "there is no such path", 405: "there is no such method at this path"}
    said = words.get(error.status_code, "this is no request")
    return _json_response({"error": said}, error.status_code)


async def _wrong_query(request: Request, error: Exception) -> Response:
    """Answer a request whose query cannot be read."""
    said = f"top is a whole number from 0 to {_MOST_TOP}, and members is true or false"
    return _json_response({"error": said}, 400)


class _Counted:
    """An application whose answers are counted by their status."""

    def __init__(self, app: ASGIApp, service: ModelService) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._service.counts.add_status(message["status"])
            await send(message)

        await self._app(scope, receive, counted)
