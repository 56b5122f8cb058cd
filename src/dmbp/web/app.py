"""The routes: the page and its two files, and `/api/ask`, which answers everything else.

An ask (`asks`) is answered as JSON, as a file, or, for `Accept: text/event-stream`, by events:
`position` in the queue, `progress`, and `done` or `failed`. Who closes the connection cancels.

    uvicorn --factory dmbp.web.app:app_from_environment --workers 4
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from dmbp.errors import DMBPError, one_line
from dmbp.web import decoding
from dmbp.web.answers import Asked, Content, Facts, Upload
from dmbp.web.asks import LONGEST_LINE, Ask, parse_ask
from dmbp.web.guard import LOOPBACK, Bodies, Guard, RefusedRequest, send_refusal
from dmbp.web.store import ByteStore, OpenedPhoto
from dmbp.web.waiting_line import LineFull, WaitingLine
from dmbp.web.work_queue import Answer, Event, JobFailed, Position, WorkQueue
from dmbp.web.worker_process import FailedAsk, ProgressEvent
from dmbp.workflows.prediction import ModelSpec

PHOTO_BYTES = 48 * 2**20
ANSWER_BYTES = 32 * 2**20
"""How much is kept of what the model saw of photos, and of answers.

With a model of 160 × 160 pixels about 350 photos, whose links open, and the last 100 answers.
"""

KEPT_KINDS = ("explain", "method", "sanity")
"""The kinds of asks whose answers are kept."""

DECODING_SECONDS = 20.0

FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
"""The files of the page, by path: no path of a request becomes one of a file."""


@dataclass(frozen=True)
class PageOptions:
    """What the page serves, and for whom.

    Attributes:
        spec: The model.
        settings: DMBP's settings.
        hosts: The names that the server answers to; "*" allows every name.
        token: What requests must know, or None.
        waiting: The most asks that wait in the queue.
        seconds: How long one ask may be computed.
    """

    spec: ModelSpec = field(default_factory=ModelSpec)
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    hosts: tuple[str, ...] = LOOPBACK
    token: str | None = None
    waiting: int = 32
    seconds: float = 300.0


def make_app(options: PageOptions | None = None) -> Guard:
    """Return the app; its processes start and end with its lifespan."""
    options = options or PageOptions()
    page = Page(options)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        await page.start()
        try:
            yield
        finally:
            await page.stop()

    content = files("dmbp.web").joinpath("templates")
    routes = [
        Route(path, _file_endpoint(content.joinpath(name).read_bytes(), media_type))
        for path, (name, media_type) in FILES.items()
    ]
    routes.append(Route("/api/model", page.describe))
    routes.append(Route("/api/ask", page, methods=["POST"]))
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers={404: _not_found, 405: _not_found, Exception: _failed},
    )
    app.state.page = page
    return Guard(app, hosts=options.hosts, token=options.token)


def page_of(guarded: Guard) -> Page:
    """Return what answers the asks of an app."""
    return guarded.app.state.page


def app_from_environment() -> ASGIApp:
    """Return an app for `uvicorn --factory`, with what environment variables say.

    `DMBP_MODEL`, `DMBP_WEIGHTS`, `DMBP_CLASSES` and `DMBP_DEVICE` are the options of `dmbp serve`,
    `DMBP_HOSTS` names separated by commas, and `DMBP_TOKEN` the token.
    """
    from pathlib import Path

    def path(name: str) -> Path | None:
        return Path(os.environ[name]) if os.environ.get(name) else None

    spec = ModelSpec(
        os.environ.get("DMBP_MODEL") or None,
        path("DMBP_WEIGHTS"),
        path("DMBP_CLASSES"),
        os.environ.get("DMBP_DEVICE") or "cpu",
    )
    named = [name.strip() for name in os.environ.get("DMBP_HOSTS", "").split(",")]
    hosts = (*LOOPBACK, *(name for name in named if name))
    preset = os.environ.get("DMBP_PRESET") or "tested"
    token = os.environ.get("DMBP_TOKEN") or None
    return make_app(PageOptions(spec, {"preset": preset}, hosts, token))


def _file_endpoint(content: bytes, media_type: str) -> Callable[[Request], Any]:
    async def send_file(_: Request) -> Response:
        return Response(content, media_type=media_type)

    return send_file


async def _not_found(_: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    return Response(b'{"error": "there is nothing here"}', status, media_type="application/json")


async def _failed(*_: Any) -> Response:
    content = b'{"error": "something went wrong inside dmbp"}'
    return Response(content, 500, media_type="application/json")


class Page:
    """Answers asks: `/api/ask` is this object, as an ASGI app."""

    def __init__(self, options: PageOptions) -> None:
        self.decoder = WorkQueue(
            "dmbp.web.decoding:Decoder",
            what="decodes photos",
            seconds=DECODING_SECONDS,
        )
        self.model = WorkQueue(
            "dmbp.web.answers:ModelService",
            (options.spec, dict(options.settings)),
            what="runs the model",
            seconds=options.seconds,
        )
        self.line = WaitingLine(options.waiting)
        self.bodies = Bodies()
        self._limit = options.seconds
        self._photos: ByteStore[OpenedPhoto] = ByteStore(PHOTO_BYTES)
        self._answers: ByteStore[bytes] = ByteStore(ANSWER_BYTES)
        self._samples: Sequence[tuple[OpenedPhoto, str | None]] = ()
        self._first: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start both processes, unless they run, and explain the first sample photo.

        Raises:
            WorkerError: If the model cannot be loaded.
        """
        if self._first is not None:
            return
        try:
            # Both are awaited, because a process that still starts could not be ended.
            starts = self.decoder.start(), self.model.start()
            failed = [k for k in await asyncio.gather(*starts, return_exceptions=True) if k]
            if failed:
                raise failed[0]
        except BaseException:
            await self.stop()
            raise
        facts: Facts = self.model.facts
        self.model.together = self.line.at_once = facts.together
        self._samples = facts.samples
        self._first = asyncio.create_task(self._explain_sample())

    async def stop(self) -> None:
        """End both processes."""
        if self._first is not None:
            self._first.cancel()
        await asyncio.gather(self.decoder.stop(), self.model.stop())

    async def _explain_sample(self) -> None:
        for opened, target in self._samples[:1]:
            ask = Ask("explain", opened.photo.digest, opened.photo.name, target)
            with suppress(JobFailed, LineFull, RefusedRequest):
                async for _ in self._events(ask, None, None):
                    pass

    async def describe(self, _: Request) -> Response:
        """Return what the page has to know: the model, its classes, methods and sample photos."""
        facts: Facts = self.model.facts
        samples = [{**opened.record, "target": target} for opened, target in self._samples]
        content = json.dumps({**facts.page, "samples": samples, "limit": self._limit})
        return Response(content, media_type="application/json")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an ask, or cancel it if nobody waits for the answer."""
        gone: asyncio.Task[None] | None = None
        try:
            ask, content = await self._read(scope, receive)
            gone = asyncio.create_task(_until_gone(receive))
            answering = asyncio.create_task(self._answer(ask, content, scope, send))
            await asyncio.wait((gone, answering), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                answering.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await answering
        except RefusedRequest as refused:
            with suppress(OSError):
                await send_refusal(send, refused)
        finally:
            if gone is not None:
                gone.cancel()

    async def _read(self, scope: Scope, receive: Receive) -> tuple[Ask, bytes | None]:
        """Return an ask and the photo that comes with it."""
        body = await self.bodies.read(scope, receive)
        try:
            end = body.find(b"\n")
            line = bytes(body if end < 0 else body[:end])
            content = b"" if end < 0 else bytes(body[end + 1 :])
        finally:
            self.bodies.release(body)
        if len(line) > LONGEST_LINE:
            raise RefusedRequest(413, "the first line of the request is too long")
        try:
            return parse_ask(line), content or None
        except DMBPError as error:
            raise RefusedRequest(400, one_line(error)) from error

    async def _answer(self, ask: Ask, content: bytes | None, scope: Scope, send: Send) -> None:
        wanted = dict(scope["headers"]).get(b"accept", b"")
        events = self._events(ask, content, scope.get("client"))
        del content
        try:
            # Who cannot be answered at all is told by the status.
            first = await anext(events)
            if b"text/event-stream" in wanted:
                await _stream(first, events, scope, send)
                return
            event = first
            while not isinstance(event, Answer | FailedAsk):
                event = await anext(events)
            if isinstance(event, FailedAsk):
                raise _refused(event)
        except (LineFull, JobFailed, RefusedRequest) as error:
            raise _refused(error) from error
        finally:
            await events.aclose()
        await _response(event.value)(scope, _nothing, send)

    async def _events(
        self, ask: Ask, content: bytes | None, client: tuple[str, int] | None
    ) -> AsyncGenerator[Event]:
        """Yield what happens until there is an answer: bytes of JSON, or a file.

        Raises:
            RefusedRequest: If the photo is not known.
            LineFull: If too many wait.
            JobFailed: If the photo cannot be opened.
        """
        digest = ask.photo if content is None else sha256(content).hexdigest()
        if digest is None or (content is None and self._known(digest) is None):
            raise RefusedRequest(
                404, "the server does not have this photo any longer: drop it again"
            )
        ask = ask.about(digest)
        opened = self._known(digest)
        kept = self._kept(ask, opened)
        if kept is not None:
            yield Answer(kept)
            return
        # Whoever is told to return sends the same again, from the same address.
        with self.line.place((client and client[0], ask)):
            if opened is None:
                assert content is not None
                opened = await self._open(ask, content)
                content = None
            if ask.kind == "open":
                yield Answer(_record(ask, opened))
                return
            photo = replace(opened.photo, name=_name(ask, opened))
            shape = photo.view.size if ask.kind == "explain" else None
            job = self.model.submit(ask.kind, Asked(ask, photo), shape=shape)
            async for event in job:
                if isinstance(event, Answer) and not isinstance(event.value, Content):
                    encoded = json.dumps(event.value).encode()
                    if ask.kind in KEPT_KINDS:
                        self._answers.put(_key(ask, opened), encoded, len(encoded))
                    yield Answer(encoded)
                else:
                    yield event

    def _known(self, digest: str) -> OpenedPhoto | None:
        """Return a photo that was opened before."""
        for sample, _ in self._samples:
            if sample.photo.digest == digest:
                return sample
        return self._photos.get(digest)

    def _kept(self, ask: Ask, opened: OpenedPhoto | None) -> bytes | None:
        """Return an answer that takes no time."""
        if opened is None:
            return None
        if ask.kind == "open":
            return _record(ask, opened)
        return self._answers.get(_key(ask, opened)) if ask.kind in KEPT_KINDS else None

    async def _open(self, ask: Ask, content: bytes) -> OpenedPhoto:
        """Decode a photo, and let the model see it."""
        assert ask.photo is not None
        upload = decoding.EncodedPhoto(content, ask.name, self.model.facts.takes_deep)
        pixels = await self.decoder.submit("decode", upload).answer()
        opened = await self.model.submit("open", Upload(ask.photo, ask.name, pixels)).answer()
        kept_bytes = len(opened.photo.view.content) + len(opened.record["view"]) + 2000
        self._photos.put(ask.photo, opened, kept_bytes)
        return opened


def _name(ask: Ask, opened: OpenedPhoto) -> str:
    """Return what the photo is called: others may know the same photo by another name."""
    return opened.photo.name if ask.name == Ask.name else ask.name


def _record(ask: Ask, opened: OpenedPhoto) -> bytes:
    return json.dumps({**opened.record, "name": _name(ask, opened)}).encode()


def _key(ask: Ask, opened: OpenedPhoto) -> tuple[Any, ...]:
    return ask.kind, ask.question, ask.method, _name(ask, opened)


def _refused(error: Exception | FailedAsk) -> RefusedRequest:
    """Return the status and the sentence for why there is no answer."""
    if isinstance(error, JobFailed):
        error = error.refusal
    if isinstance(error, FailedAsk):
        return RefusedRequest(500 if error.is_bug else 422, error.sentence)
    if isinstance(error, LineFull):
        sentence = f"{error}; there should be room in {error.retry_after} seconds"
        return RefusedRequest(503, sentence, retry_after=error.retry_after, before=error.before)
    assert isinstance(error, RefusedRequest)
    return error


def _response(value: bytes | Content) -> Response:
    if isinstance(value, bytes):
        return Response(value, media_type="application/json")
    named = f"attachment; filename*=UTF-8''{quote(value.name, errors='replace')}"
    return Response(
        value.content, media_type=value.media_type, headers={"content-disposition": named}
    )


async def _stream(first: Event, rest: AsyncIterator[Event], scope: Scope, send: Send) -> None:
    """Send events as they come."""
    del scope
    headers = [(b"content-type", b"text/event-stream"), (b"x-accel-buffering", b"no")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def tell(event: Event) -> None:
        await send({"type": "http.response.body", "body": _encoded(event), "more_body": True})

    await tell(first)
    try:
        async for event in rest:
            await tell(event)
    except (JobFailed, RefusedRequest) as error:
        await tell(FailedAsk(_refused(error).sentence))
    await send({"type": "http.response.body", "body": b""})


def _encoded(event: Event) -> bytes:
    """Return an event as the protocol of server-sent events has it."""
    if isinstance(event, Answer):
        assert isinstance(event.value, bytes), "files are not sent as events"
        return b"event: done\ndata: " + event.value + b"\n\n"
    if isinstance(event, Position):
        name, values = "position", {"before": event.before}
    elif isinstance(event, ProgressEvent):
        name, values = "progress", {"step": event.step, "of": event.of, "doing": event.doing}
    else:
        name, values = "failed", {"error": event.sentence}
    return f"event: {name}\ndata: {json.dumps(values)}\n\n".encode()


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _nothing() -> Any:
    raise AssertionError("the request has been read")
