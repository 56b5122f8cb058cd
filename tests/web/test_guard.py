"""Who may ask, and how much: requests are given to the guard as uvicorn would."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from dmbp.web import guard
from dmbp.web.guard import LOOPBACK, MOST_BODY, Bodies, Guard, RefusedRequest, host_name

TOKEN = "a-token-of-the-test"


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answer every request that gets here."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"here"})


def request(
    *headers: tuple[str, str],
    method: str = "GET",
    path: str = "/",
    query: str = "",
    token: str | None = None,
    hosts: Sequence[str] = LOOPBACK,
) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of an answer."""
    sent: list[dict[str, Any]] = []
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers],
    }

    async def send(message: Any) -> None:
        sent.append(dict(message))

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    asyncio.run(Guard(app, hosts=hosts, token=token)(scope, receive, send))
    head = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], head, sent[1]["body"]


HERE = ("host", "127.0.0.1:8765")


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:8765", "localhost:1", "LOCALHOST", "[::1]:8765"]
)
def test_own_names_are_answered(host: str) -> None:
    assert request(("host", host))[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8765",
        "127.0.0.1.evil.example",
        "localhost@evil.example",
        "localhost evil.example",
        "localhost/",
        "",
        "127.0.0.1:",
        "127.0.0.1:8765:80",
        "[::1",
    ],
)
def test_other_names_are_refused(host: str) -> None:
    status, head, body = request(("host", host))
    assert status == 421
    assert head["connection"] == "close"
    assert "does not answer to the name" in json.loads(body)["error"]


def test_two_host_headers_are_refused() -> None:
    assert request(HERE, HERE)[0] == 400


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([], 200),
        ([("origin", "http://127.0.0.1:8765")], 200),
        ([("origin", "http://127.0.0.1:8765"), ("sec-fetch-site", "same-origin")], 200),
        ([("origin", "http://127.0.0.1:9999")], 403),
        ([("origin", "http://evil.example")], 403),
        ([("origin", "null")], 403),
        ([("sec-fetch-site", "cross-site")], 403),
        ([("sec-fetch-site", "same-site")], 403),
    ],
)
def test_a_post_has_to_come_from_the_page(headers: list[tuple[str, str]], status: int) -> None:
    assert request(HERE, *headers, method="POST", path="/api/ask")[0] == status


def test_a_token_is_asked_for() -> None:
    status, _, body = request(HERE, token=TOKEN)
    assert status == 401
    assert TOKEN not in body.decode()
    assert request(HERE, ("authorization", "Bearer wrong"), token=TOKEN)[0] == 401
    assert request(HERE, ("cookie", "dmbp-token=é"), token=TOKEN)[0] == 401
    assert request(HERE, query="token=wrong", token=TOKEN)[0] == 401
    assert request(HERE, path="/api/model", query=f"token={TOKEN}", token=TOKEN)[0] == 401
    assert request(HERE, ("authorization", f"Bearer {TOKEN}"), token=TOKEN)[0] == 200
    assert request(HERE, ("cookie", f"other=1; dmbp-token={TOKEN}"), token=TOKEN)[0] == 200


def test_the_token_moves_from_the_address_into_a_cookie() -> None:
    status, head, _ = request(HERE, query=f"token={TOKEN}", token=TOKEN)
    assert (status, head["location"]) == (303, "/")
    assert head["set-cookie"] == f"dmbp-token={TOKEN}; HttpOnly; SameSite=Strict; Path=/"


def test_every_answer_has_a_policy() -> None:
    for status, head, _ in (request(HERE), request(("host", "evil.example"))):
        assert status in (200, 421)
        policy = dict(part.split(" ", 1) for part in head["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert head["x-content-type-options"] == "nosniff"
        assert head["cache-control"] == "no-store"


def test_names_are_read_from_hosts() -> None:
    assert host_name("[::1]:80") == "::1"
    assert host_name("Name.Example:80") == "name.example"


def read(bodies: Bodies, *parts: bytes, declared: str | None = None) -> bytearray:
    """Read a body that arrives in parts."""
    headers = [] if declared is None else [(b"content-length", declared.encode())]
    messages = [
        {"type": "http.request", "body": part, "more_body": k < len(parts) - 1}
        for k, part in enumerate(parts)
    ]

    async def receive() -> Any:
        if not messages:
            await asyncio.sleep(60)
        return messages.pop(0)

    return asyncio.run(bodies.read({"headers": headers}, receive))


def test_bodies_are_counted_and_released() -> None:
    bodies = Bodies()
    body = read(bodies, b"ab", b"c")
    assert (body, bodies.held) == (b"abc", 3)
    bodies.release(body)
    assert bodies.held == 0


def test_a_body_is_cut_at_its_limit() -> None:
    bodies, part = Bodies(), bytes(2**20)
    for parts, declared in (([part] * 21, None), ([b""], str(MOST_BODY + 1)), ([b""], "9" * 30)):
        with pytest.raises(RefusedRequest, match="at most 20 MB") as refused:
            read(bodies, *parts, declared=declared)
        assert refused.value.status == 413
        assert bodies.held == 0


def test_all_bodies_together_are_limited() -> None:
    bodies = Bodies(most_held=10)
    kept = read(bodies, b"12345678")
    with pytest.raises(RefusedRequest, match="too many photos") as refused:
        read(bodies, b"12345678")
    assert (refused.value.status, refused.value.retry_after, bodies.held) == (503, 2, 8)
    bodies.release(kept)
    assert read(bodies, b"12345678")


def test_a_body_that_does_not_arrive_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.1)
    bodies = Bodies()

    async def receive() -> Any:
        await asyncio.sleep(0.06)
        return {"type": "http.request", "body": b"x", "more_body": True}

    with pytest.raises(RefusedRequest) as refused:
        asyncio.run(bodies.read({"headers": []}, receive))
    assert (refused.value.status, bodies.held) == (408, 0)


def test_a_connection_that_ends_in_the_middle_is_noticed() -> None:
    async def receive() -> Any:
        return {"type": "http.disconnect"}

    with pytest.raises(RefusedRequest, match="in the middle"):
        asyncio.run(Bodies().read({"headers": []}, receive))
