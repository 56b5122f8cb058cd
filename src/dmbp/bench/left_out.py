"""Tasks of a plan that cannot be asked, because of their model or labels: the others go on."""

import warnings
from collections.abc import Generator
from contextlib import contextmanager

from dmbp.bench.plan import Plan, Task
from dmbp.errors import DMBPError, sentence


class LeftOut:
    """Counts a plan's tasks that cannot be asked; where it is all of them, that is an error."""

    def __init__(self, plan: Plan) -> None:
        self.count = 0
        self._tasks = len(plan.tasks)

    @contextmanager
    def unless_asked(self, task: Task) -> Generator[None]:
        """Ask a task inside; if it cannot be, that is noted."""
        try:
            yield
        except DMBPError as error:
            self.count += 1
            if self.count == self._tasks:
                raise
            warnings.warn(f"the task {task.name!r} is left out: {sentence(error)}", stacklevel=2)
