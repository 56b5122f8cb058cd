"""`dmbp serve`: bind a port, and answer until interrupted."""

import asyncio
import secrets
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from dmbp.errors import InputError
from dmbp.files import reason
from dmbp.web.app import PageOptions, make_app, page_of
from dmbp.web.guard import LOOPBACK

HEADER_SECONDS = 10.0
"""How long the headers of a request may take to arrive, and a connection may be silent."""

MOST_CONNECTIONS = 512

ANY_ADDRESS = ("0.0.0.0", "::", "")
"""Hosts that stand for every address of this machine."""


class ImpatientProtocol(H11Protocol):
    """HTTP for clients that are neither silent nor slow while the server waits for a request."""

    def connection_made(self, transport: Any) -> None:
        """Begin to wait."""
        super().connection_made(transport)
        self._patience = self.loop.call_later(HEADER_SECONDS, transport.close)

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of the headers, unless all are here."""
        super().data_received(data)
        cycle: Any = self.cycle  # None before the first request
        waiting = cycle is None or cycle.response_complete
        if not waiting:
            self._patience.cancel()
        elif self._patience.cancelled():
            self._patience = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._patience.cancel()
        super().connection_lost(exc)


def names_of(host: str) -> tuple[str, ...]:
    """Return the names that a server bound to a host is known by."""
    if host in ANY_ADDRESS:
        own = socket.gethostname()
        found = {own.lower(), socket.getfqdn().lower()}
        with suppress(OSError):
            found |= {str(info[4][0]).lower() for info in socket.getaddrinfo(own, None)}
        return (*LOOPBACK, *sorted(found))
    return (*LOOPBACK, host.lower())


def serve(options: PageOptions, *, host: str, port: int, on_ready: Callable[[str], None]) -> None:
    """Answer until interrupted.

    Args:
        options: What is served.
        host: The address to bind.
        port: The port, or 0 for any free one.
        on_ready: Called with the page's address once it can be opened.

    Raises:
        InputError: If the port cannot be bound.
        WorkerError: If the model cannot be loaded.
    """
    bound = _bind(host, port)
    if threading.current_thread() is threading.main_thread():
        # uvicorn raises the signal again at the end, which should let this process clean up, too.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(options, bound, host, on_ready))


async def _serve(
    options: PageOptions, bound: socket.socket, host: str, on_ready: Callable[[str], None]
) -> None:
    app = make_app(options)
    # Before uvicorn does: it would print a traceback if the model cannot be loaded.
    await page_of(app).start()
    name = "127.0.0.1" if host in ANY_ADDRESS else host
    address = f"http://{f'[{name}]' if ':' in name else name}:{bound.getsockname()[1]}/"
    shown = address + (f"?token={options.token}" if options.token else "")
    server = AnnouncedServer(server_config(app), lambda: on_ready(shown))
    await server.serve(sockets=[bound])


class AnnouncedServer(uvicorn.Server):
    """A server that calls `on_ready` once it listens."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen."""
        await super().startup(sockets)
        if self.started:
            self._on_ready()


def server_config(app: ASGIApp) -> uvicorn.Config:
    """Return how uvicorn serves an app."""
    return uvicorn.Config(
        app,
        http=ImpatientProtocol,
        ws="none",
        log_level="error",
        access_log=False,
        server_header=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=2,
    )


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except (OSError, OverflowError) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        raise InputError(f"{host} port {port} cannot be used: {why}; try another --port") from error
    return bound


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host."""
    return host.lower() in LOOPBACK or host.startswith("127.")


def new_token() -> str:
    """Return a token that nobody can guess."""
    return secrets.token_urlsafe(24)
