"""The page on a free port of this machine, in a thread of the tests' own process."""

import asyncio
import json
import socket
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from io import BytesIO
from threading import Event, Thread
from typing import Any

from PIL import Image

from dmbp.web.app import Page, PageOptions, make_app, page_of
from dmbp.web.server import AnnouncedServer, server_config


@dataclass
class Running:
    """A server that answers."""

    port: int
    page: Page

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def post(
        self,
        ask: dict[str, Any] | bytes,
        photo: bytes | None = None,
        *,
        accept: str = "application/json",
        **headers: str,
    ) -> tuple[int, Any]:
        """Send an ask, and return the status and the answer."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=120)
        line = ask if isinstance(ask, bytes) else json.dumps(ask).encode()
        body = line if photo is None else line + b"\n" + photo
        try:
            connection.request("POST", "/api/ask", body, {"accept": accept, **headers})
            response = connection.getresponse()
            return response.status, _decoded(response)
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> tuple[int, HTTPResponse, bytes]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            return response.status, response, response.read()
        finally:
            connection.close()


def _decoded(response: HTTPResponse) -> Any:
    content = response.read()
    if response.headers.get_content_type() == "application/json":
        return json.loads(content)
    return content


@contextmanager
def running(options: PageOptions) -> Generator[Running]:
    """Start a server, and stop it."""
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    app = make_app(options)
    ready = Event()
    server = AnnouncedServer(server_config(app), ready.set)
    failed: list[BaseException] = []

    async def serve() -> None:
        await page_of(app).start()
        await server.serve(sockets=[bound])

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            failed.append(error)
        finally:
            ready.set()

    thread = Thread(target=run, daemon=True)
    thread.start()
    ready.wait(120)
    try:
        if failed:
            raise failed[0]
        yield Running(bound.getsockname()[1], page_of(app))
    finally:
        server.should_exit = True
        thread.join(30)
        bound.close()


def photo(colour: tuple[int, int, int] = (200, 120, 60), side: int = 96) -> bytes:
    """Return a small photo of one colour with a bright square, as PNG."""
    image = Image.new("RGB", (side, side), colour)
    image.paste((250, 250, 240), (side // 4, side // 4, side // 2, side // 2))
    buffer = BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()
