"""The photos of a unit as its model sees them, read and decoded in threads.

Made for the next unit while the last one is computed, so that an accelerator does not wait.
"""

from concurrent.futures import Executor, Future
from pathlib import Path

from torch import Tensor

from dmbp.bench.questions import Asked
from dmbp.bench.unit import Unit
from dmbp.data.photo import decode_photo
from dmbp.errors import PhotoError
from dmbp.models import Preprocessing


class Photos:
    """The photos of one unit, each decoded once for all its classes and methods."""

    def __init__(self, unit: Unit, threads: Executor) -> None:
        seen = unit.subject.preprocessing
        self._found: dict[Path, Future[Tensor]] = {
            path: threads.submit(_input, path, seen) for path in unit.paths()
        }

    def input(self, asked: Asked) -> Tensor:
        """The input for a question, (1, 3, height, width); a `PhotoError` where there is none."""
        if asked.problem is not None:
            raise PhotoError(asked.problem)
        return self._found[asked.sample.path].result()


def _input(path: Path, seen: Preprocessing) -> Tensor:
    return seen.tensor(seen.view(decode_photo(path)))
