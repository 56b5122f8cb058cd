"""What can go wrong with the cache of captured graphs: `python -m benchmarks.cache_kills`.

Every trial explains an image with a small network in a new process and compares the attribution
with that of a process without a cache, bit for bit: after kills at random moments, with several
processes at once, after a flipped byte at every tenth position, with a full disk (a small tmpfs, if
this may be mounted), and with files of another release of torch.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAM = """
import sys, warnings, hashlib, torch
if sys.argv[1:]: torch.__version__ = sys.argv[1]
from torch import nn
import dmbp
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.GELU(),
                      nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)).eval()
images = torch.randn(1, 3, 32, 32)
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    print("start", flush=True)
    net = dmbp.linearize(model, images, target=1)
content = net.pullback().numpy().tobytes()
print(hashlib.sha256(content).hexdigest())
for warning in found: print("note:", warning.message)
"""


def start(cache: str, *arguments: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "DMBP_CACHE": cache}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(process: "subprocess.Popen[str]") -> tuple[str, list[str]]:
    """Return the digest of the attribution, and the notes."""
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    _, digest, *notes = out.splitlines()
    return digest, notes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--flips", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    expected, _ = finish(start("off"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        started = time.perf_counter()
        finish(start(str(folder / "timed")))
        longest = time.perf_counter() - started

        cache, wrong, left = folder / "killed", 0, 0
        for _ in range(options.kills):
            shutil.rmtree(cache, ignore_errors=True)
            process = start(str(cache))
            assert process.stdout is not None
            process.stdout.readline()
            # The file is written near the end; most kills fall around that moment.
            time.sleep(max(0.0, draw.gauss(0.45 * longest, 0.1 * longest)))
            process.kill()
            process.wait()
            left += sum(1 for path in cache.glob("*") if path.name.endswith(".part"))
            digest, notes = finish(start(str(cache)))
            wrong += digest != expected or bool(notes)
        print(f"{options.kills} kills: {wrong} differ or print notes, {left} partial files left")

        processes = [start(str(folder / "shared")) for _ in range(2)]
        results = [finish(process) for process in processes]
        wrong = sum(result != (expected, []) for result in results)
        print(f"2 processes at once: {wrong} differ or print notes")

        (path,) = (folder / "shared").glob("*.graph")
        content = path.read_bytes()
        wrong = noted = 0
        for _ in range(options.flips):
            flipped = bytearray(content)
            flipped[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
            path.write_bytes(flipped)
            digest, notes = finish(start(str(folder / "shared")))
            wrong += digest != expected
            noted += len(notes) == 1
        print(f"{options.flips} flipped bits: {wrong} differ, {noted} noted")

        digest, notes = finish(start(str(folder / "shared"), "99.0"))
        files = len(list((folder / "shared").glob("*.graph")))
        print(f"another torch: equal {digest == expected}, notes {notes}, {files} files")

        disk = folder / "full"
        disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(disk)]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            print("a full disk: not tried, since no tmpfs can be mounted")
        else:
            (disk / "filled").write_bytes(bytes(4096))
            digest, notes = finish(start(str(disk)))
            names = sorted(path.name for path in disk.iterdir())
            print(f"a full disk: equal {digest == expected}, notes {notes}, files {names}")
            subprocess.run(["umount", str(disk)], check=True)


if __name__ == "__main__":
    main()
