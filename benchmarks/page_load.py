"""Many clients of the page at once: nothing is lost or swapped, and memory stays flat.

    python -m benchmarks.page_load --clients 100 --photos 3 --warm 200 --more 200
    python -m benchmarks.page_load --clients 30 --photos 1 --warm 5 --more 0 --preset tested

Each client sends photos of its own, one after the other, and asks again when it is told to (503).
An answer counts only if it carries the digest of the photo that was sent. Before, eight clients
send `--warm` photos, which fill what the server keeps in memory; afterwards, they send `--more`
others. `--preset fast --iterations 1`, the default, keeps a CPU from being the limit; `dmbp serve`
starts with the preset `tested`. With `--minutes`, clients send no further photo after that time.
"""

import argparse
import sys
import threading
import time
from collections import Counter
from hashlib import sha256
from typing import Any

import numpy

from benchmarks.page_serving import Server, noise, served


class Load:
    """Clients that ask about photos of their own until there is an answer."""

    def __init__(self, server: Server, kind: str, deadline: float) -> None:
        self.counts: Counter[str] = Counter()
        self.seconds: list[float] = []
        self._server, self._kind, self._deadline = server, kind, deadline

    def run(self, clients: int, photos: int, first: int = 0) -> None:
        """Let clients ask about so many photos each, at once."""

        def client(number: int) -> None:
            for index in range(photos):
                if time.monotonic() > self._deadline:
                    self.counts["not sent"] += 1
                else:
                    self._ask(first + number * photos + index)

        threads = [threading.Thread(target=client, args=(k,)) for k in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _ask(self, seed: int) -> None:
        photo, counts = noise(seed), self.counts
        started = time.perf_counter()
        while True:
            try:
                ask = {"kind": self._kind, "name": f"{seed}.jpg"}
                status, answer = self._server.post(ask, photo)
            except OSError as error:
                counts[f"connection: {type(error).__name__}"] += 1
                time.sleep(1)
                continue
            if status != 503:
                break
            counts["told 503"] += 1
            time.sleep(answer["retry_after"] or 1)
        names = (answer.get("photo"), answer.get("name"))
        if status != 200:
            counts[f"refused {status}"] += 1
        elif answer["digest"] == sha256(photo).hexdigest() and f"{seed}.jpg" in names:
            counts["answered"] += 1
            if counts["answered"] % 50 == 0:
                print(f"answered {counts['answered']}", file=sys.stderr)
        else:
            counts["swapped"] += 1
        self.seconds.append(time.perf_counter() - started)


def shown(memory: dict[str, float]) -> str:
    return ", ".join(f"{name} {size:.0f}" for name, size in memory.items()) + " MiB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--photos", type=int, default=3)
    parser.add_argument("--warm", type=int, default=200)
    parser.add_argument("--more", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--kind", default="explain", choices=("explain", "open"))
    parser.add_argument("--preset", default="fast")
    parser.add_argument("--iterations", default="1")
    options: Any = parser.parse_args()
    settings = ["--preset", options.preset]
    if options.preset != "tested":
        settings += ["--iterations", options.iterations]
    deadline = time.monotonic() + 60 * options.minutes
    with served(*settings) as server:
        Load(server, options.kind, deadline).run(8, -(-options.warm // 8), first=10**6)
        before, peak_before = server.memory(), server.memory("VmHWM")
        started = time.perf_counter()
        load = Load(server, options.kind, deadline)
        load.run(options.clients, options.photos)
        taken = time.perf_counter() - started
        asked, counts = options.clients * options.photos, load.counts
        p50, p95 = numpy.percentile(load.seconds, (50, 95))
        print(f"{options.clients} clients × {options.photos} photos in {taken:.0f} s: "
              f"p50 {p50:.1f} s, p95 {p95:.1f} s, longest {max(load.seconds):.1f} s")  # fmt: skip
        during = server.memory()
        more = 8 * -(-options.more // 8)
        load.run(8, more // 8, first=10**7)
        after, peak = server.memory(), server.memory("VmHWM")
        print(f"{asked} photos, then {more}: {dict(counts)}")
        print(f"memory after {options.warm} to warm up: {shown(before)}")
        print(f"memory after {asked} more: {shown(during)}")
        print(f"memory after {asked + more} more: {shown(after)}")
        print(f"most until then: {shown(peak_before)}; in the end: {shown(peak)}")
        is_right = counts["answered"] + counts["not sent"] == asked + more
        print("nothing was lost or swapped" if is_right else "NOT every photo was answered")


if __name__ == "__main__":
    main()
