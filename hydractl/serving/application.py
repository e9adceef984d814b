"""The service over HTTP: the paths, what they answer, and the status of each answer."""

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
"""The status that is counted for a request whose client has gone away; nobody receives it."""

_NO_TELEMETRY: dict[str, Any] = {
    "telemetry": {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
}
"""FastAPI would report every request to an OpenTelemetry provider in this process; older versions ignore this."""

_REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"description": "The body or the query cannot be read"},
    408: {"description": "The body came too slowly"},
    413: {"description": "The body, a text, an image or the number of inputs is too large"},
    415: {"description": "The model reads bodies of another type"},
    422: {"description": "An input is no image that can be decoded, or the model has no answer for it"},
    503: {"description": "Too many requests are waiting, or the answer took too long"},
}
"""The statuses of refused predictions; the body is ``{"error": what is wrong, "input": the index of the input}``."""


def application(service: ModelService) -> ASGIApp:
    """Return the ASGI application of a service, with its four paths: predictions, health, the model, and metrics."""
    app = FastAPI(
        title="hydractl serve",
        version=__version__,
        lifespan=lambda _: _running(service),
        docs_url=None,  # the two pages of documentation load scripts from other servers
        redoc_url=None,
        **_NO_TELEMETRY,
    )

    # The functions of the paths have no docstrings, because FastAPI would show them to clients.
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
    """Let the service answer requests while the server runs."""
    service.start()
    yield
    await service.stop()


class _Exchange:
    """One request for a prediction, and its answer.

    The time limit runs from the creation of this object, when the head of the request has been read.
    """

    def __init__(self, service: ModelService, request: Request) -> None:
        self._service = service
        self._headers = request.headers
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._deadline = self._began + service.limits.max_seconds
        expected = request.headers.get("expect", "").lower()
        self._body = Body(request.receive, waits_for_leave=expected == "100-continue")

    async def answer(self, form: LineForm) -> Response:
        """Return the answer: predictions, a refusal, or an error of the service. It raises nothing.

        Args:
            form: the optional parts of each row that the client asks for.
        """
        try:
            return await self._prediction_response(form)
        except RequestRefused as refusal:
            await self._discard_rest_of_body()
            return _refusal_response(refusal, keeps_open=self._body.complete)
        except Disconnected:  # nobody receives this answer; its status is counted
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
            RequestRefused: the request cannot be answered.
            Disconnected: the client has gone away.
        """
        self._service.enter()
        try:
            body = await self._read_body()
            rows = await self._rows_in_time(body, form)
        finally:
            self._service.leave()
        return _json_response({"predictions": rows})

    async def _read_body(self) -> bytes:
        """Return the body of the request.

        Raises:
            RequestRefused: the body is too large, or comes too slowly.
            Disconnected: the client has gone away.
        """
        limits = self._service.limits
        try:
            async with asyncio.timeout_at(self._deadline):
                return await self._body.read(limits.max_body, _declared_size(self._headers))
        except TimeoutError:
            raise RequestRefused(408, f"the body was not here within {limits.max_seconds:g} seconds") from None

    async def _rows_in_time(self, body: bytes, form: LineForm) -> list[PredictionRow]:
        """Return the rows, unless the client goes away or the time is up before they are computed.

        Raises:
            RequestRefused: an input has no answer, or the rows come too late.
            Disconnected: the client has gone away.
        """
        content_type = self._headers.get("content-type", "")
        # Compute the rows, and at the same time watch whether the client goes away.
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
            # Wait for both to end, which they do at once. Their exceptions were raised above, or no longer matter.
            await asyncio.gather(work, client_gone, return_exceptions=True)

    async def _discard_rest_of_body(self) -> None:
        """Read and drop the rest of the body in the time that is left: a client that sends does not read its answer."""
        with contextlib.suppress(TimeoutError, Disconnected):
            async with asyncio.timeout_at(self._deadline):
                await self._body.discard(self._service.limits.max_body)


def _declared_size(headers: Mapping[str, str]) -> int | None:
    """Return the size of the body in bytes that the head of the request declares; None if it declares none."""
    text = headers.get("content-length", "")
    if not text.isdecimal():
        return None
    return int(text)


def _json_response(document: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON document as a response."""
    content = json.dumps(document, ensure_ascii=False, allow_nan=False).encode("utf-8")
    return Response(content, status, dict(headers or {}), media_type="application/json")


def _refusal_response(refusal: RequestRefused, *, keeps_open: bool) -> Response:
    """Return a refusal as a response.

    Args:
        refusal: what is wrong.
        keeps_open: whether the connection can be used again, because the whole request has been read.
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
    """Answer a request for a path, or with a method, that does not exist."""
    assert isinstance(error, HTTPException)
    words = {404: "there is no such path", 405: "there is no such method at this path"}
    said = words.get(error.status_code, "this is no request")
    return _json_response({"error": said}, error.status_code)


async def _wrong_query(request: Request, error: Exception) -> Response:
    """Answer a request whose query cannot be parsed."""
    said = f"top is a whole number from 0 to {_MOST_TOP}, and members is true or false"
    return _json_response({"error": said}, 400)


class _Counted:
    """An ASGI application around ``app`` that counts its answers by status."""

    def __init__(self, app: ASGIApp, service: ModelService) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._service.counts.add_status(message["status"])
            await send(message)

        await self._app(scope, receive, counted)
