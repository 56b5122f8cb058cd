"""Print Python's version and those of the required packages: `python scripts/versions.py`."""

import platform
import re
from importlib.metadata import requires, version


def main() -> None:
    names = [
        re.split(r"[<>=!~; \[]", line)[0] for line in requires("dmbp") or [] if "extra" not in line
    ]
    print(
        "Python", platform.python_version(), *(f"{name} {version(name)}" for name in sorted(names))
    )


if __name__ == "__main__":
    main()
