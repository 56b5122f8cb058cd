"""What it gains that photos which wait together are explained together, on a CPU or a GPU.

    python -m benchmarks.page_batches --device cuda --photos 64 --clients 32
    python -m benchmarks.page_batches --photos 12 --clients 12

One client sends photos one after the other, and then many clients send others at once: seconds for
each, photos per second, and how many were computed together. At last a photo that was in a batch is
asked about alone, and the two maps are compared. The settings are those `dmbp serve` starts with.
"""

import argparse
import threading
import time
from base64 import b64decode
from collections import Counter
from typing import Any

import numpy

from benchmarks.page_serving import Server, noise, served


def explained(server: Server, seed: int) -> tuple[float, dict[str, Any]]:
    """Return the seconds that an explanation took, until it was answered, and the answer."""
    started = time.perf_counter()
    while True:
        status, answer = server.post({"kind": "explain", "name": f"{seed}.jpg"}, noise(seed))
        if status == 200:
            return time.perf_counter() - started, answer
        if status != 503:
            raise SystemExit(f"status {status}: {answer['error']}")
        time.sleep(answer["retry_after"])


def told(name: str, seconds: list[float], taken: float) -> None:
    p50, p95 = numpy.percentile(seconds, (50, 95))
    print(f"{name}: {len(seconds)} photos in {taken:.1f} s, {len(seconds) / taken:.2f} a second, "
          f"p50 {p50:.2f} s, p95 {p95:.2f} s", flush=True)  # fmt: skip


def at_once(server: Server, photos: range, clients: int) -> dict[int, tuple[float, dict[str, Any]]]:
    """Explain photos for clients that each send the next one when theirs is answered."""
    found: dict[int, tuple[float, dict[str, Any]]] = {}
    seeds = iter(photos)
    lock = threading.Lock()

    def client() -> None:
        while True:
            with lock:
                seed = next(seeds, None)
            if seed is None:
                return
            found[seed] = explained(server, seed)

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def worth(answer: dict[str, Any]) -> Any:
    return numpy.frombuffer(b64decode(answer["worth"]), "<f4")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default=None)
    parser.add_argument("--weights", default=None)
    parser.add_argument("--preset", default="tested")
    parser.add_argument("--photos", type=int, default=12)
    parser.add_argument("--clients", type=int, default=12)
    options: Any = parser.parse_args()
    chosen = {"device": options.device, "preset": options.preset}
    chosen |= {"model": options.model, "weights": options.weights}
    words = [word for name, k in chosen.items() if k for word in (f"--{name}", str(k))]
    started = time.perf_counter()
    with served(*words) as server:
        print(f"ready after {time.perf_counter() - started:.1f} s", flush=True)
        first = [explained(server, seed)[0] for seed in range(2)]
        print(f"the first photo took {first[0]:.2f} s, the second {first[1]:.2f} s", flush=True)
        started = time.perf_counter()
        alone = [explained(server, 100 + k)[0] for k in range(options.photos)]
        taken_alone = time.perf_counter() - started
        told("one after the other", alone, taken_alone)
        # Batches of a size that has not been met before take longer, once.
        at_once(server, range(1000, 1000 + options.clients), options.clients)
        started = time.perf_counter()
        found = at_once(server, range(10**6, 10**6 + options.photos), options.clients)
        taken = time.perf_counter() - started
        told(f"{options.clients} clients at once", [k for k, _ in found.values()], taken)
        sizes = Counter(answer["together"] for _, answer in found.values())
        print(f"photos by how many were computed together: {dict(sorted(sizes.items()))}")
        print(
            f"gain: {taken_alone / options.photos * len(found) / taken:.2f} times as many a second"
        )
        print("memory:", {name: round(size) for name, size in server.memory().items()}, "MiB")
    seed, (_, together) = max(found.items(), key=lambda item: item[1][1]["together"])
    with served(*words) as server:
        alone_map, batch_map = worth(explained(server, seed)[1]), worth(together)
        difference = abs(alone_map - batch_map).max() / abs(alone_map).max()
        print(f"a photo alone and with {together['together'] - 1} others: the maps differ by "
              f"{difference:.1e} of the largest value")  # fmt: skip


if __name__ == "__main__":
    main()
