"""Many clients of the page at once: nothing is lost or swapped, and memory stays flat.

    python -m benchmarks.page_load --clients 100 --photos 3 --more 200

Each client sends photos of its own, one after the other, and asks again when it is told to (503).
An answer counts only if it carries the digest of the photo that was sent. Afterwards one client
sends `--more` further photos. `--kind open` only decodes photos and asks the model once about each.
`--preset fast --iterations 1`, the default, keeps a CPU from being the limit.
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


def ask_until_answered(server: Server, kind: str, seed: int, counts: Counter[str]) -> float:
    """Ask about one photo until there is an answer, and return the seconds that took."""
    photo = noise(seed)
    started = time.perf_counter()
    while True:
        try:
            status, answer = server.post({"kind": kind, "name": f"{seed}.jpg"}, photo)
        except OSError as error:
            counts[f"connection: {type(error).__name__}"] += 1
            time.sleep(1)
            continue
        if status == 503:
            counts["told 503"] += 1
            time.sleep(answer["retry_after"] or 1)
            continue
        if status != 200:
            counts[f"refused {status}"] += 1
        elif answer["digest"] == sha256(photo).hexdigest() and f"{seed}.jpg" in (
            answer.get("photo"),
            answer.get("name"),
        ):
            counts["answered"] += 1
            if counts["answered"] % 50 == 0:
                print(f"answered {counts['answered']}", file=sys.stderr)
        else:
            counts["swapped"] += 1
        return time.perf_counter() - started


def run(server: Server, kind: str, clients: int, photos: int) -> tuple[Counter[str], list[float]]:
    counts: Counter[str] = Counter()
    seconds: list[float] = []

    def client(number: int) -> None:
        for index in range(photos):
            seconds.append(ask_until_answered(server, kind, number * photos + index, counts))

    threads = [threading.Thread(target=client, args=(k,)) for k in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return counts, seconds


def shown(memory: dict[str, float]) -> str:
    return ", ".join(f"{name} {size:.0f} MiB" for name, size in memory.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--photos", type=int, default=3)
    parser.add_argument("--more", type=int, default=200)
    parser.add_argument("--kind", default="explain", choices=("explain", "open"))
    parser.add_argument("--preset", default="fast")
    parser.add_argument("--iterations", default="1")
    options: Any = parser.parse_args()
    settings = ("--preset", options.preset, "--iterations", options.iterations)
    with served(*settings) as server:
        warm: Counter[str] = Counter()
        for seed in range(5):
            ask_until_answered(server, options.kind, 10**6 + seed, warm)
        before = server.memory()
        started = time.perf_counter()
        counts, seconds = run(server, options.kind, options.clients, options.photos)
        taken = time.perf_counter() - started
        during = server.memory()
        for seed in range(options.more):
            ask_until_answered(server, options.kind, 10**7 + seed, counts)
        after = server.memory()
        asked = options.clients * options.photos
        p50, p95 = numpy.percentile(seconds, (50, 95))
        print(f"{options.clients} clients × {options.photos} photos in {taken:.0f} s: "
              f"p50 {p50:.1f} s, p95 {p95:.1f} s, longest {max(seconds):.1f} s")  # fmt: skip
        print(f"{asked} photos, then {options.more}: {dict(counts)}")
        print(f"memory before: {shown(before)}")
        print(f"memory after {asked}: {shown(during)}")
        print(f"memory after {asked + options.more}: {shown(after)}")
        is_right = counts["answered"] == asked + options.more
        print("nothing was lost or swapped" if is_right else "NOT every photo was answered")


if __name__ == "__main__":
    main()
