"""What goes wrong in long runs: kills, a full disk, vanishing photos, memory, two runs at once.

`DMBP_KILLS=20 pytest tests/bench/run/test_faults.py -k killed -s` kills a run twenty times.
"""

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import current_thread, main_thread

import pytest
from PIL import Image

from dmbp.bench import Store
from dmbp.bench.plan import read_plan
from dmbp.bench.report.table import table
from dmbp.bench.run.driver import RunOptions, Tally, run_plan
from dmbp.bench.run.local import run_in_process
from dmbp.bench.run.unit_runner import UNITS_AHEAD, DecodingRoom
from dmbp.data.photo import decode_photo
from dmbp.errors import WorkerError
from tests.bench.processes import all_gone, count, ended, start, wait_for_more, workers_of
from tests.bench.tiny import make_plan, mark, run_undisturbed, stored_rows

KILLS = int(os.environ.get("DMBP_KILLS", "3"))


@pytest.mark.slow
def test_a_run_killed_at_any_moment_continues(tmp_path: Path) -> None:
    """kill -9 from the first import to the last rows; in the end no row is missing or double."""
    plan = make_plan(tmp_path, photos=3 * KILLS, model="slow")
    store = tmp_path / "killed.sqlite"
    moments = random.Random(KILLS)
    for kill in range(KILLS):
        process = start(plan, store, *(["--workers", "2"] if kill % 3 == 2 else []))
        if kill % 3 == 1:  # before it has done anything
            time.sleep(moments.random() * 3)
        else:
            wait_for_more(store, process)
            time.sleep(moments.random() * 0.3)
        workers = workers_of(process.pid)
        process.kill()
        ended(process)
        print(f"kill {kill + 1}: {count(store)} of {6 * KILLS} rows, {len(workers)} workers")
        assert all_gone(workers)
    assert 0 < count(store) < 6 * KILLS  # or nothing was left to continue
    assert ended(start(plan, store)) == (0, "")
    assert (stored_rows(store), table(read_plan(plan), store)) == run_undisturbed(plan, batch=1)
    print(f"in the end: {count(store)} rows, the same as of an undisturbed run")


@pytest.mark.slow
def test_two_runs_on_one_store(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, photos=8, model="slow")
    store = tmp_path / "s.sqlite"
    both = [start(plan, store) for _ in range(2)]
    assert [ended(process) for process in both] == [(0, ""), (0, "")]
    assert stored_rows(store) == run_undisturbed(plan, batch=1)[0]


@pytest.mark.slow
def test_a_full_disk_is_an_error_and_loses_nothing(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, photos=40, methods=["random"])
    store = tmp_path / "s.sqlite"
    code, said = ended(start(plan, store, limit=64 * 1024))
    assert code == 2
    assert said.startswith(f"dmbp: cannot write to {store}: ")
    assert 0 < count(store) < 40
    run_plan(read_plan(plan), store, RunOptions(batch=1))
    assert stored_rows(store) == run_undisturbed(plan, batch=1)[0]


def test_photos_that_vanish_during_a_run(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    gone, cut = (tmp_path / "photos" / "dog" / f"000{number}.png" for number in ("09", "11"))

    def damage(tally: Tally) -> None:
        if gone.exists():
            gone.unlink()
            cut.write_bytes(cut.read_bytes()[:400])

    tally = run_plan(read_plan(plan), tmp_path / "s.sqlite", RunOptions(batch=1), damage)
    assert (tally.done, tally.failed, tally.left) == (20, 4, 0)
    assert dict(Store(tmp_path / "s.sqlite").failures()) == {
        f"there is no file {gone}": 2,
        f"{cut} cannot be read: image file is truncated": 2,
    }


def test_one_photo_that_does_not_fit_into_memory(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, model="hungry", methods=["random"])
    mark(tmp_path / "photos" / "dog" / "00005.png")
    tally = run_plan(read_plan(plan), tmp_path / "s.sqlite", RunOptions(batch=8))
    assert (tally.done, tally.failed) == (11, 1)
    ((failure, _),) = Store(tmp_path / "s.sqlite").failures()
    assert failure.startswith("CUDA out of memory")


def test_outputs_that_are_not_finite_are_failures(tmp_path: Path) -> None:
    """A stored NaN would count as damaged, and be computed again in every run."""
    plan = make_plan(tmp_path, photos=4, model="undefined", methods=["random"])
    mark(tmp_path / "photos" / "cat" / "00002.png")
    store = tmp_path / "s.sqlite"
    for kept in (0, 4):
        tally = run_plan(read_plan(plan), store, RunOptions())
        assert tally.kept == kept
    assert Store(store).failures() == [
        ("the model's output contains NaN or infinity for these inputs", 1)
    ]


def test_a_device_that_breaks_ends_the_process(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, photos=8, model="broken", methods=["random"])
    mark(tmp_path / "photos" / "dog" / "00003.png")
    store = tmp_path / "s.sqlite"
    with pytest.raises(WorkerError, match="the device cannot be used any more: CUDA error"):
        run_plan(read_plan(plan), store, RunOptions(batch=1))
    assert 0 < len(stored_rows(store)) < 8  # earlier rows stay, and none failed because of it
    assert not Store(store).failures()


def test_photos_are_decoded_once_and_by_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[str] = []

    def noted(path: Path) -> Image.Image:
        assert current_thread() is not main_thread()
        decoded.append(path.name)
        return decode_photo(path)

    monkeypatch.setattr("dmbp.bench.run.unit_runner.decode_photo", noted)
    tally = run_plan(read_plan(make_plan(tmp_path)), tmp_path / "s.sqlite", RunOptions(batch=5))
    assert (tally.done, tally.failed) == (24, 0)
    assert len(decoded) == len(set(decoded)) == 12


def test_large_photos_are_decoded_one_after_the_other() -> None:
    """Eight photos of 64 megapixels at once would take 10 GB; small ones may be side by side."""
    room, busy, most = DecodingRoom(100), list[int](), list[tuple[int, int]]()

    def decode(pixels: int) -> None:
        with room.taken(pixels):
            busy.append(pixels)
            most.append((sum(busy), len(busy)))
            time.sleep(0.01)
            busy.remove(pixels)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(decode, [60, 60, 10, 10, 10, 10, 100, 60] * 3))
    assert max(pixels for pixels, _ in most) <= 100
    assert max(count for _, count in most) > 2
    with room.taken(500):  # a photo that changed since its header was read must not wait forever
        pass


def test_units_are_made_as_they_are_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    def counted(units, **keywords):
        def noted():
            for unit in units:
                taken.append(len(unit.parts))
                yield unit

        return run_in_process(noted(), **keywords)

    monkeypatch.setattr("dmbp.bench.run.driver.run_in_process", counted)

    def look(tally: Tally) -> None:
        computed = (tally.done - 1) // 2  # two methods, of one photo
        assert len(taken) <= computed + 1 + UNITS_AHEAD

    run_plan(read_plan(make_plan(tmp_path)), tmp_path / "s.sqlite", RunOptions(batch=1), look)
    assert len(taken) == 12


def test_pipes_devices_and_names_that_are_not_utf_8(tmp_path: Path) -> None:
    """A pipe would wait forever and a device never end; a name has to be text to be stored."""
    plan, store = make_plan(tmp_path, photos=2), tmp_path / "s.sqlite"
    os.mkfifo(tmp_path / "photos" / "cat" / "pipe.jpg")
    (tmp_path / "photos" / "cat" / "zero.png").symlink_to("/dev/zero")
    (tmp_path / "photos" / "dog" / "00001.png").rename(
        tmp_path / "photos" / "dog" / os.fsdecode(b"caf\xe9.png")
    )
    tally = run_plan(read_plan(plan), store, RunOptions())
    assert (tally.done, tally.failed) == (4, 4)
    failures = [failure for failure, _ in Store(store).failures()]
    assert sorted(failure.rpartition("/")[2] for failure in failures) == [
        "pipe.jpg cannot be read: it is a pipe, not a file",
        "zero.png cannot be read: it is a device, not a file",
    ]
    with closing(Store(store)) as results:
        assert "dog/caf\\udce9.png" in {row.cell.image for row in results.rows()}
