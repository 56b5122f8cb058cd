"""Who may ask, and how much: the first thing that a request meets.

- The Host header has to be one of the names that the server is known by, so that another site
  cannot reach it under a name of its own (DNS rebinding).
- A POST with an Origin has to come from the page itself.
- A server that other machines can reach asks for a token. The address that `dmbp serve` prints has
  it; the page then keeps it in a cookie that scripts cannot read.
- `read_body` counts a body's bytes as they arrive, gives them a time limit, and bounds what all
  requests hold together.

Answers carry a content security policy that allows the page's own files and nothing else.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Collection, Generator, Iterable
from contextlib import contextmanager
from hmac import compare_digest
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlsplit

from starlette.types import Message, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "localhost", "::1")

COOKIE = "dmbp-token"

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-store",
}

MOST_BODY = 20 * 2**20
"""The most bytes of a request's body."""

MOST_HELD = 10 * MOST_BODY
"""The most bytes that the bodies of all requests hold together."""

BODY_SECONDS = 30.0
"""How long a body may take to arrive."""


class RefusedRequest(Exception):
    """A request that is not answered: the status and a sentence.

    It may say in how many seconds to ask again, and how many requests go before it.
    """

    def __init__(
        self,
        status: int,
        sentence: str,
        *,
        retry_after: int | None = None,
        before: int | None = None,
    ) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence
        self.retry_after, self.before = retry_after, before


class Guard:
    """Passes requests on that are allowed.

    Args:
        app: The app that answers them.
        hosts: The names of the server, without ports; "*" allows every name.
        token: What requests must know, if others can reach the server.
    """

    def __init__(self, app: Any, *, hosts: Iterable[str], token: str | None = None) -> None:
        self.app, self._token = app, token
        self._hosts = frozenset(name.lower() for name in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *(
                        (name.encode(), value.encode())
                        for name, value in HEADERS.items()
                        if name.encode() not in own
                    ),
                ]
            await send(message)

        try:
            greeting = self._check(scope)
        except RefusedRequest as refused:
            await send_refusal(send_guarded, refused)
            return
        if greeting is not None:
            await _send(send_guarded, 303, b"", greeting)
            return
        await self.app(scope, receive, send_guarded)

    def _check(self, scope: Scope) -> dict[str, str] | None:
        """Raise `RefusedRequest`, or return the headers that greet who has come with the token."""
        host = _only(scope, b"host")
        name = host_name(host)
        if "*" not in self._hosts and name not in self._hosts:
            raise RefusedRequest(421, f"this server does not answer to the name {name!r}")
        if scope["method"] not in ("GET", "HEAD"):
            _check_origin(scope, host)
        if self._token is None:
            return None
        asked = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["path"] == "/" and asked and _same(asked, self._token):
            cookie = f"{COOKIE}={self._token}; HttpOnly; SameSite=Strict; Path=/"
            return {"location": "/", "set-cookie": cookie}
        if not any(_same(given, self._token) for given in _tokens(scope)):
            raise RefusedRequest(
                401, "this server needs a token: open the address that `dmbp serve` has printed"
            )
        return None


def host_name(host: str) -> str:
    """Return a Host header's name in lower case, without port and brackets."""
    found = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^:\[\]@/\\\s]+))(?::\d{1,5})?", host)
    return "" if found is None else (found[1] or found[2]).lower()


def _check_origin(scope: Scope, host: str) -> None:
    """Refuse a request that another page makes; a program that is no browser names no origin."""
    origin = _only(scope, b"origin")
    if origin and urlsplit(origin).netloc.lower() != host.lower():
        raise RefusedRequest(403, "only this server's own page may ask")
    site = _only(scope, b"sec-fetch-site")
    if site not in ("", "same-origin", "none"):
        raise RefusedRequest(403, "only this server's own page may ask")


def _only(scope: Scope, name: bytes) -> str:
    """Return a header, or nothing if there is none; several of one name are refused."""
    values = [value for key, value in scope["headers"] if key == name]
    if len(values) > 1:
        raise RefusedRequest(400, f"there is more than one header {name.decode()}")
    return values[0].decode("latin-1") if values else ""


def _tokens(scope: Scope) -> Collection[str]:
    """Return what a request offers as token: a cookie, or the header Authorization."""
    scheme, _, given = _only(scope, b"authorization").partition(" ")
    tokens = [given.strip()] if scheme.lower() == "bearer" else []
    try:
        cookie = SimpleCookie(_only(scope, b"cookie"))
    except CookieError:
        return tokens
    return [*tokens, *(morsel.value for key, morsel in cookie.items() if key == COOKIE)]


def _same(given: str, token: str) -> bool:
    return compare_digest(given.encode(errors="replace"), token.encode())


async def send_refusal(send: Send, refused: RefusedRequest) -> None:
    """Answer with a status and a sentence, and end the connection: its body is not read."""
    headers = {"content-type": "application/json", "connection": "close"}
    if refused.retry_after is not None:
        headers["retry-after"] = str(refused.retry_after)
    values = {
        "error": refused.sentence,
        "retry_after": refused.retry_after,
        "before": refused.before,
    }
    await _send(send, refused.status, json.dumps(values).encode(), headers)


async def _send(send: Send, status: int, content: bytes, headers: dict[str, str]) -> None:
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    pairs.append((b"content-length", str(len(content)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": content})


class Bodies:
    """Reads bodies, and bounds what they hold together."""

    def __init__(self, most_held: int = MOST_HELD) -> None:
        self.held = 0
        self._most_held = most_held

    async def read(self, scope: Scope, receive: Receive) -> bytearray:
        """Return a body. Whoever is done with it calls `release`.

        Raises:
            RefusedRequest: If it is too large or too slow, or all bodies together are too large.
        """
        with self._counting() as body:
            declared = _only(scope, b"content-length")
            if declared.isdecimal() and int(declared[:20]) > MOST_BODY:
                raise RefusedRequest(413, too_large())
            try:
                async with asyncio.timeout(BODY_SECONDS):
                    await self._receive(receive, body)
            except TimeoutError as error:
                raise RefusedRequest(408, "the request took too long to arrive") from error
        return body

    def release(self, body: bytearray) -> None:
        """Count a body's bytes no longer."""
        self.held -= len(body)
        body.clear()

    @contextmanager
    def _counting(self) -> Generator[bytearray]:
        body = bytearray()
        try:
            yield body
        except BaseException:
            self.release(body)
            raise

    async def _receive(self, receive: Receive, body: bytearray) -> None:
        while True:
            message: dict[str, Any] = dict(await receive())
            if message["type"] == "http.disconnect":
                raise RefusedRequest(400, "the connection ended in the middle of the request")
            part = message.get("body", b"")
            if len(body) + len(part) > MOST_BODY:
                raise RefusedRequest(413, too_large())
            if self.held + len(part) > self._most_held:
                raise RefusedRequest(503, "too many photos arrive at once", retry_after=2)
            body += part
            self.held += len(part)
            if not message.get("more_body", False):
                return


def too_large() -> str:
    """Return what is said about a body that is too large."""
    return f"a photo may have at most {MOST_BODY // 2**20} MB"
