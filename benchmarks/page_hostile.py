"""Requests that mean ill: what the page answers, whether it lives, and its memory.

    python -m benchmarks.page_hostile

A row for each kind of request: how many were sent, and what came back. All of it stays on this
machine, and ends after a few minutes.
"""

import random
import socket
import struct
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from io import BytesIO

from PIL import Image

from benchmarks.page_serving import Server, noise, served

RANDOM = random.Random(0)


def _png(width: int, height: int, data: bytes, *, depth: int = 8, colour: int = 2) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(
            ">I", zlib.crc32(kind + content)
        )  # fmt: skip

    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def bomb(number: int) -> bytes:
    """A small file of enormous pixels, by its header or by what its data unpacks to."""
    if number % 3 == 0:
        return _png(50_000, 50_000, zlib.compress(bytes(10**6)))
    if number % 3 == 1:
        return _png(4_900, 4_900, zlib.compress(bytes(8 * 10**7), 9))
    buffer = BytesIO()
    Image.new("1", (7000, 7000)).save(buffer, "PNG")
    return buffer.getvalue()


def truncated(number: int) -> bytes:
    whole = noise(number)
    return whole[: RANDOM.randrange(1, len(whole) - 2)]


def polyglot(number: int) -> bytes:
    """A photo that is also something else, or something else that begins like a photo."""
    tail = [b"<script>alert(1)</script>", b"PK\x03\x04" + bytes(64), b"%PDF-1.7\n", b"#!/bin/sh\n"]
    if number % 2:
        return noise(number) + tail[number % 4]
    return b"\xff\xd8\xff\xe0" + tail[number % 4] * 20


def wrong_type(number: int) -> bytes:
    kinds = ("GIF", "BMP", "TIFF", "ICO", "PPM")
    buffer = BytesIO()
    Image.new("RGB", (40, 40)).save(buffer, kinds[number % len(kinds)])
    others = [
        buffer.getvalue(),
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"http://evil.example/x",
    ]
    return [*others, b"%PDF-1.7", RANDOM.randbytes(4096), b"", b"RIFF\x00\x00\x00\x00WEBP"][
        number % 7
    ]


def damaged(number: int) -> bytes:
    content = bytearray(noise(number))
    for _ in range(40):
        content[RANDOM.randrange(len(content))] = RANDOM.randrange(256)
    return bytes(content)


UPLOADS: Mapping[str, tuple[int, Callable[[int], bytes]]] = {
    "bombs": (30, bomb),
    "truncated": (40, truncated),
    "polyglots": (40, polyglot),
    "wrong types": (50, wrong_type),
    "damaged": (40, damaged),
}
"""How many uploads of each kind are sent, 200 together."""


def raw(server: Server, content: bytes, *, wait: float = 15) -> str:
    """Send bytes, and return the status that comes back, or what happens instead."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=wait) as connection:
        try:
            connection.sendall(content)
            answer = connection.recv(65536)
        except TimeoutError:
            return "no answer"
        except OSError:
            return "closed"
    if b"Traceback" in answer:
        return "A TRACEBACK"
    return answer[9:12].decode() or "closed"


def request(line: str, *headers: str, body: bytes = b"") -> bytes:
    given = (
        headers
        if any(k.lower().startswith("host:") for k in headers)
        else ("Host: localhost", *headers)
    )
    return "\r\n".join([line, *given, f"Content-Length: {len(body)}", "", ""]).encode() + body


def streamed_gigabyte(server: Server) -> str:
    """Send a gigabyte in pieces, and return how much was taken."""
    sent = 0
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        head = "POST /api/ask HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head.encode())
        piece = b"100000\r\n" + bytes(2**20) + b"\r\n"
        with suppress(OSError):
            for _ in range(1024):
                connection.sendall(piece)
                sent += 1
    return "cut before 30 MiB" if sent < 30 else f"TAKEN: {sent} MiB"


def slow_loris(server: Server) -> str:
    """Send a header byte by byte, and return when the server has had enough."""
    started = time.monotonic()
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        try:
            for byte in b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: " + b"a" * 600:
                connection.sendall(bytes([byte]))
                time.sleep(0.25)
                connection.setblocking(False)
                with suppress(BlockingIOError):
                    if connection.recv(1) == b"":
                        break
                connection.setblocking(True)
        except OSError:
            pass
    return "closed within 15 s" if time.monotonic() - started < 15 else "KEPT OPEN"


def slow_body(server: Server) -> str:
    started = time.monotonic()
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(
            b"POST /api/ask HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\n"
        )
        try:
            while time.monotonic() - started < 60:
                connection.sendall(b"x")
                time.sleep(0.5)
        except OSError:
            pass
    return "closed within 40 s" if time.monotonic() - started < 40 else "KEPT OPEN"


def cut_off(server: Server) -> str:
    """Leave in the middle of a request, or right after it."""
    body = b'{"kind": "explain"}\n' + noise(RANDOM.randrange(10**6))
    content = request("POST /api/ask HTTP/1.1", body=body)
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(content[: RANDOM.randrange(60, len(content) + 1)])
    return "left"


def at_once(server: Server, attack: Callable[[Server], str]) -> Counter[str]:
    """Attack from 30 connections at once, and see whether others are still served."""
    results: list[str] = []
    threads = [
        threading.Thread(target=lambda: results.append(attack(server)), daemon=True)
        for _ in range(30)
    ]
    for thread in threads:
        thread.start()
    time.sleep(2)
    results.append("served meanwhile" if server.is_alive else "NOT SERVED MEANWHILE")
    for thread in threads:
        thread.join()
    return Counter(results)


def ask_line(values: str) -> bytes:
    return request("POST /api/ask HTTP/1.1", body=values.encode() + b"\n" + noise(1))


POST = "POST /api/ask HTTP/1.1"
REQUESTS: Mapping[str, list[bytes]] = {
    "foreign Host": [request("GET / HTTP/1.1", f"Host: {name}") for name in
                     ("evil.example", "127.0.0.1.evil.example", "localhost@evil.example", "0")],
    "foreign Origin": [request(POST, f"Origin: {name}", body=b"{}") for name in
                       ("http://evil.example", "null", "http://localhost:1", "file://")],
    "other paths": [request(f"GET {path} HTTP/1.1") for path in
                    ("/../../etc/passwd", "/%2e%2e%2fetc%2fpasswd", "//etc/passwd", "/.git/config",
                     "/page.js%00", "/templates/../app.py", "/..%5capp.py", "/api/model/../../x")],
    "no HTTP": [b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n", b"\x00" * 100, b"A" * 70_000,
                request("TRACE / HTTP/1.1"), request("DELETE /api/ask HTTP/1.1")],
    "wrong asks": [ask_line(text) for text in
                   ("", "[]", "[" * 5000, '{"kind":"x"}', '{"kind":"explain","target":5}',
                    '{"kind":"explain","target":"similarity:image=/etc/passwd"}',
                    '{"kind":"explain","target":"class:" }', '{"kind":"method","method":"../x"}')],
    "markup in names": [ask_line('{"kind":"open","name":"<script>alert(1)</script>"}'),
                        ask_line('{"kind":"explain","target":"<img src=x onerror=alert(1)>"}')],
}  # fmt: skip
"""Requests as bytes."""


def main() -> None:
    found: dict[str, Counter[str]] = {}
    with served("--preset", "fast", "--iterations", "1") as server:
        for seed in range(20):  # so that what is made once does not count as growth
            assert server.post({"kind": "explain"}, noise(10**6 + seed))[0] == 200
        before = server.memory()
        for name, (count, make) in UPLOADS.items():
            found[name] = Counter()
            for number in range(count):
                status, answer = server.post({"kind": "open", "name": "x"}, make(number))
                is_leak = "Traceback" in str(answer) or "\n" in str(answer.get("error", ""))
                found[name]["A TRACEBACK" if is_leak else str(status)] += 1
        for name, contents in REQUESTS.items():
            found[name] = Counter(raw(server, content) for content in contents)
        found["a gigabyte, streamed"] = Counter(streamed_gigabyte(server) for _ in range(2))
        found["connections cut"] = Counter(cut_off(server) for _ in range(40))
        for name, attack in {"slow headers": slow_loris, "slow bodies": slow_body}.items():
            found[name] = at_once(server, attack)
        status, _ = server.post({"kind": "explain"}, noise(99))
        after = server.memory()
        for name, counts in found.items():
            print(f"{name:22s} {sum(counts.values()):4d}  {dict(counts)}")
        print(f"alive: {server.is_alive}; a photo is then answered with {status}")
        print("memory before:", {name: round(size) for name, size in before.items()}, "MiB")
        print("memory after: ", {name: round(size) for name, size in after.items()}, "MiB")


if __name__ == "__main__":
    main()
