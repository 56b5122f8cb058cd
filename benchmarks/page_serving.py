"""What the benchmarks of the page share: a server of its own, its memory, and photos.

The server is `dmbp serve` on a free port of this machine, with the built-in model.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy
from PIL import Image


@dataclass(frozen=True)
class Server:
    """A server in a process of its own."""

    process: subprocess.Popen[str]
    port: int

    def post(self, ask: dict[str, Any], photo: bytes | None = None) -> tuple[int, dict[str, Any]]:
        """Send an ask, and return the status and the answer."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=600)
        body = json.dumps(ask).encode() + (b"" if photo is None else b"\n" + photo)
        try:
            connection.request("POST", "/api/ask", body, {"accept": "application/json"})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def memory(self, field: str = "VmRSS") -> dict[str, float]:
        """Return the resident MiB of the server's processes, the largest child being the model.

        With the field "VmHWM" it is the most that they had.
        """
        pids = [self.process.pid, *_children(self.process.pid)]
        sizes = {pid: _resident(pid, field) for pid in pids}
        server = sizes.pop(self.process.pid)
        model, *others = sorted(sizes.values(), reverse=True)
        return {"server": server, "model": model, "decoder": max(others, default=0.0)}

    @property
    def is_alive(self) -> bool:
        """Whether the server runs and answers."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", "/")
            return connection.getresponse().status == 200 and self.process.poll() is None
        except OSError:
            return False
        finally:
            connection.close()


@contextmanager
def served(*options: str) -> Iterator[Server]:
    """Start `dmbp serve`, and end it."""
    command = [sys.executable, "-u", "-m", "dmbp", "serve", "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"http://127\.0\.0\.1:(\d+)/", line):
                break
        else:
            raise SystemExit("dmbp serve has not started")
        try:
            yield Server(process, int(found[1]))
        finally:
            process.terminate()


def noise(seed: int, side: int = 200) -> bytes:
    """Return a photo of smooth noise as JPEG; no two seeds give the same."""
    values = numpy.random.default_rng(seed).integers(0, 256, (12, 12, 3), numpy.uint8)
    buffer = BytesIO()
    Image.fromarray(values).resize((side, side), Image.Resampling.BICUBIC).save(buffer, "JPEG")
    return buffer.getvalue()


def _children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    found = [int(child) for child in listed]
    return [child for child in found if "resource_tracker" not in _command(child)]


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def _resident(pid: int, field: str) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) / 1024
