"""While a model is exported, no other thread runs one: torch.export changes modules meanwhile.

It puts tensors that hold nothing in place of a module's parameters, and what it sets for a whole
process is not made for two exports at once. Models may run side by side.
"""

import threading
from collections.abc import Generator
from contextlib import contextmanager


class SharedOrAlone:
    """Either many threads are inside, or one alone; who is inside may go in once more.

    >>> door = SharedOrAlone()
    >>> with door.shared(), door.shared(), door.alone():
    ...     pass
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside: dict[int, int] = {}
        self._waiting = 0
        self._owner: int | None = None

    @contextmanager
    def shared(self) -> Generator[None]:
        """Beside others; who wants to be alone goes first."""
        me = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: self._may_share(me))
            self._inside[me] = self._inside.get(me, 0) + 1
        try:
            yield
        finally:
            with self._changed:
                self._inside[me] -= 1
                if not self._inside[me]:
                    del self._inside[me]
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Generator[None]:
        """When all others are out."""
        me = threading.get_ident()
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: self._owner is None and self._inside.keys() <= {me})
                self._owner = me
            finally:
                self._waiting -= 1
        try:
            yield
        finally:
            with self._changed:
                self._owner = None
                self._changed.notify_all()

    def _may_share(self, me: int) -> bool:
        if me in self._inside or self._owner == me:
            return True
        return self._owner is None and not self._waiting


models = SharedOrAlone()
"""Running any model is shared, exporting one is alone."""
