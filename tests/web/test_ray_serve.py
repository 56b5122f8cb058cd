"""The page as replicas on a local Ray: answers are those of the photo that was sent."""

import json
import os
import socket
from collections.abc import Iterator
from hashlib import sha256
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.web.serving import photo

pytestmark = [
    pytest.mark.skipif(
        not os.environ.get("DMBP_TEST_RAY_SERVE"),
        reason="takes a minute, and needs pip install 'dmbp[ray]': set DMBP_TEST_RAY_SERVE=1",
    ),
    pytest.mark.filterwarnings("default"),  # Ray's own are not ours to fix
]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    # Read when Ray Serve is imported: on a busy machine its proxy takes longer than 5 seconds.
    os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = pytest.importorskip("ray")
    serve = pytest.importorskip("ray.serve")
    from dmbp.web.ray_serve import app

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(app({"preset": "fast", "replicas": "2"}))
    yield f"http://127.0.0.1:{port}/"
    serve.shutdown()
    ray.shutdown()


def post(address: str, ask: dict[str, Any], content: bytes | None = None) -> tuple[int, Any]:
    body = json.dumps(ask).encode() + (b"" if content is None else b"\n" + content)
    request = Request(address + "api/ask", body, {"accept": "application/json"})
    try:
        with urlopen(request, timeout=300) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        return error.code, json.load(error)


def test_any_replica_answers_about_the_photo_that_comes_with_the_ask(address: str) -> None:
    for shade in range(6):
        content = photo((40 * shade, 90, 20))
        status, answer = post(address, {"kind": "explain", "target": "cat"}, content)
        assert (status, answer["digest"]) == (200, sha256(content).hexdigest())


def test_a_replica_that_does_not_know_a_photo_says_so(address: str) -> None:
    assert post(address, {"kind": "explain", "photo": "0" * 64})[0] == 404


def test_an_unknown_argument_is_named(address: str) -> None:
    from dmbp.errors import InputError
    from dmbp.web.ray_serve import app

    with pytest.raises(InputError, match="no argument 'modle'; did you mean 'model'"):
        app({"modle": "resnet50"})
    with pytest.raises(InputError, match="replicas must be a number"):
        app({"replicas": "many"})
