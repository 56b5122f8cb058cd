"""Asks over HTTP: answers, events, refusals, and a server that survives all of them."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from hashlib import sha256
from io import BytesIO
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from PIL import Image

from dmbp.web.answers import ModelService
from dmbp.web.app import PageOptions
from tests.web.serving import Running, photo, running


def events(answer: bytes) -> list[tuple[str, Any]]:
    parts = [part.split("\n") for part in answer.decode().split("\n\n") if part]
    return [(name.removeprefix("event: "), json.loads(data[6:])) for name, data in parts]


def opened(server: Running, content: bytes, name: str = "x.png") -> str:
    status, answer = server.post({"kind": "open", "name": name}, content)
    assert status == 200
    assert answer["digest"] == sha256(content).hexdigest()
    return answer["digest"]


def test_the_page_and_its_files_are_served(server: Running) -> None:
    for path in ("/", "/page.css", "/page.js", "/api/model"):
        assert server.get(path)[0] == 200
    content = server.get("/")[2].decode()
    assert "style=" not in content
    assert "<script>" not in content
    assert "//" not in content.replace("<!doctype", "")


@pytest.mark.parametrize(
    "path",
    [
        "/../pyproject.toml",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/templates/page.html",
        "/page.js/../../app.py",
        "/..\\app.py",
        "/\x01",
        "/api/ask/x",
    ],
)
def test_no_path_leads_to_other_files(server: Running, path: str) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        line = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        connection.sendall(line.encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.split(b" ")[1] in (b"404", b"400")
    assert b"Traceback" not in answer
    assert b"root:" not in answer


def test_an_explanation_comes_with_progress_and_its_digest(server: Running) -> None:
    digest = opened(server, photo((20, 60, 200)))
    ask = {"kind": "explain", "photo": digest, "target": "cat"}
    status, answer = server.post(ask, accept="text/event-stream")
    assert status == 200
    told = events(answer)
    names = [name for name, _ in told]
    assert names[-1] == "done"
    assert set(names) == {"position", "progress", "done"}
    assert told[names.index("progress")][1]["doing"] == "iteration 1 of 2"
    done = told[-1][1]
    assert (done["digest"], done["name"], done["size"]) == (digest, "cat", [160, 160])
    again, kept = server.post(ask)
    assert (again, kept) == (200, done)  # from memory


def test_the_same_photo_of_another_person_keeps_its_name(server: Running) -> None:
    content = photo((200, 10, 120))
    digest = opened(server, content, "mine.png")
    assert server.post({"kind": "open", "name": "yours.png"}, content)[1]["name"] == "yours.png"
    for name in ("mine.png", "yours.png"):
        ask = {"kind": "explain", "photo": digest, "name": name, "target": "cat"}
        answer = server.post(ask)[1]
        assert answer["photo"] == name
        assert name in answer["command"]
    assert server.post({"kind": "open", "photo": digest})[1]["name"] == "mine.png"


def test_the_answer_is_that_of_the_printed_python_and_command(
    server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = photo((90, 140, 20), side=200)
    monkeypatch.chdir(tmp_path)
    Path("odd name.png").write_bytes(content)
    opened(server, content, "odd name.png")
    digest = sha256(content).hexdigest()
    asked = {"photo": digest, "target": "dog", "rather_than": ["cat"]}
    _, answer = server.post({"kind": "explain", **asked})
    _, array = server.post({"kind": "file", "file": "npy", **asked})
    expected = numpy.load(BytesIO(array))
    found: dict[str, Any] = {}
    exec(answer["python"], found)
    assert numpy.allclose(found["explanation"].attribution.numpy(), expected, atol=1e-5)
    words = shlex.split(answer["command"])
    assert words[:4] == ["dmbp", "explain", "odd name.png", "--classes"]
    assert " ".join(words[5:]) == ("--target dog --rather-than cat --preset fast --iterations 2")


def test_a_batch_answers_each_photo_as_if_it_were_alone() -> None:
    from dmbp.web.answers import Asked, Upload
    from dmbp.web.asks import Ask
    from dmbp.web.decoding import Pixels
    from dmbp.workflows.prediction import ModelSpec

    service = ModelService(ModelSpec(), {"preset": "fast", "iterations": 2})
    photos = [
        service._open(Upload(str(k), f"{k}.png", Pixels(image.mode, image.size, image.tobytes())))
        for k, image in enumerate(
            Image.open(BytesIO(photo((40 * k, 200 - 60 * k, 90)))) for k in range(3)
        )
    ]
    asks = [
        Asked(Ask("explain", k.photo.digest, target=target), k.photo)
        for k, target in zip(photos, ("cat", "no such class", "dog"), strict=True)
    ]
    told: list[str] = []
    first, wrong, last = service.answer("explain", asks, lambda *step: told.append(step[2]))
    assert "no such class" in wrong.sentence
    assert told[0] == "iteration 1 of 2"
    service._kept.clear()
    for together, ask in ((first, asks[0]), (last, asks[2])):
        (alone,) = service.answer("explain", [ask], lambda *_: None)
        for name in ("digest", "label", "sentence", "command"):
            assert together[name] == alone[name]
        worths = [
            torch.frombuffer(bytearray(_decoded(k["worth"])), dtype=torch.float32)
            for k in (together, alone)
        ]
        assert torch.allclose(*worths, atol=1e-4 * float(worths[1].abs().max()))


def _decoded(text: str) -> bytes:
    from base64 import b64decode

    return b64decode(text)


@pytest.mark.parametrize(
    ("ask", "content", "status", "said"),
    [
        (b"no json", None, 400, "line of JSON"),
        ({"kind": "explain", "photo": "0" * 64}, None, 404, "drop it again"),
        ({"kind": "open"}, None, 404, "drop it again"),
        ({"kind": "open"}, b"GIF89a" + bytes(100), 422, "not JPEG, PNG or WEBP"),
        ({"kind": "open"}, photo()[:-40], 422, "cannot be read"),
        ({"kind": "explain", "target": "unicorn"}, photo(), 422, "unicorn"),
        ({"kind": "explain", "target": "similarity:image=/etc/passwd"}, photo(), 422, "files"),
        ({"kind": "explain", "target": "region:cat@ mask = /etc/passwd"}, photo(), 422, "files"),
        ({"kind": "method", "method": "nonsense"}, photo(), 422, "nonsense"),
        ({"kind": "region", "region": "AAAA"}, photo(), 422, "a bit for each of 160"),
    ],
)
def test_wrong_asks_are_refused_in_one_sentence(
    server: Running, ask: Any, content: bytes | None, status: int, said: str
) -> None:
    found, answer = server.post(ask, content)
    assert found == status
    assert said in answer["error"]
    assert "\n" not in answer["error"]
    assert "Traceback" not in answer["error"]


def test_a_killed_process_fails_one_request_and_the_next_works(server: Running) -> None:
    digest = opened(server, photo((1, 2, 3)))
    pid = server.page.model.pid
    assert pid is not None
    from threading import Timer

    Timer(0.7, os.kill, (pid, signal.SIGKILL)).start()
    ask = {"kind": "method", "photo": digest, "method": "rise"}
    status, answer = server.post(ask)
    assert status == 500
    assert answer["error"] == (
        "the process that runs the model has ended; it is started again, so please try again"
    )
    status, answer = server.post({**ask, "method": "random"})
    assert (status, answer["digest"]) == (200, digest)
    assert server.page.model.pid not in (pid, None)


def test_who_leaves_frees_the_process(server: Running) -> None:
    digest = opened(server, photo((3, 2, 1)))
    ask = json.dumps({"kind": "method", "photo": digest, "method": "rise"}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        head = f"POST /api/ask HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(ask)}\r\n\r\n"
        connection.sendall(head.encode() + ask)
        time.sleep(1)
    started = time.monotonic()
    assert server.post({"kind": "method", "photo": digest, "method": "random"})[0] == 200
    assert time.monotonic() - started < 15  # RISE takes far longer


def test_a_huge_body_is_cut_and_a_slow_one_closed(server: Running) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(b"POST /api/ask HTTP/1.1\r\nHost: localhost\r\n")
        connection.sendall(b"Transfer-Encoding: chunked\r\n\r\n")
        sent = 0
        chunk = b"100000\r\n" + bytes(2**20) + b"\r\n"
        try:
            while sent < 64 * 2**20:
                connection.sendall(chunk)
                sent += 2**20
        except OSError:
            pass
        assert sent < 40 * 2**20
    assert server.page.bodies.held == 0
    assert server.get("/")[0] == 200


def test_a_foreign_page_cannot_ask(server: Running) -> None:
    assert server.post({"kind": "open"}, photo(), origin="http://evil.example")[0] == 403
    assert server.post({"kind": "open"}, photo(), host="evil.example")[0] == 421
    assert server.get("/", host="evil.example")[0] == 421


def test_photos_leave_no_trace_on_disk(server: Running, tmp_path: Path) -> None:
    def listing() -> set[str]:
        return {str(path) for path in Path("/tmp").iterdir()}

    before = listing()
    digest = opened(server, photo((77, 1, 99)))
    for ending in ("png", "html"):
        assert server.post({"kind": "file", "file": ending, "photo": digest})[0] == 200
    assert {k for k in listing() - before if "dmbp" in k} == set()


def test_the_command_serves_and_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dmbp", "serve", "--port", "0", "--preset", "fast"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [*command, "--iterations", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline(), process.stdout.readline()]
        assert "the page is at http://127.0.0.1:" in lines[1]
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert said == ""
    assert process.returncode == 0


def test_a_model_that_cannot_be_loaded_is_said_at_once() -> None:
    from dmbp.errors import ModelError
    from dmbp.workflows.prediction import ModelSpec

    with pytest.raises(ModelError, match="no-such-model"):
        ModelService(ModelSpec("no-such-model"), {})


def test_if_one_process_cannot_start_the_other_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The services are such as start at once, without PyTorch."""
    from dmbp.errors import WorkerError
    from dmbp.web.work_queue import WorkQueue

    started, before = list[WorkQueue](), set(active_children())

    def obedient(_: str, arguments: tuple[Any, ...] = (), **options: Any) -> WorkQueue:
        refused = ("refuse",) if arguments else ()
        started.append(WorkQueue("tests.web.services:Obedient", refused, **options))
        return started[-1]

    monkeypatch.setattr("dmbp.web.app.WorkQueue", obedient)
    with pytest.raises(WorkerError, match="there is no such model"), running(PageOptions()):
        pass
    assert len(started) == 2
    assert set(active_children()) == before
