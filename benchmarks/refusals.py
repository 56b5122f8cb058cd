"""What dmbp says about models that it cannot explain: `python -m benchmarks.refusals`.

Prints each model of `tests.refused` with the sentence that refuses it, or with the relative error
of its linear network if it is explained after all. A name that starts with an exception's type is a
traceback, which no model should give.
"""

import argparse
import warnings

from tests.refused import CASES, make

import dmbp
from dmbp.errors import DMBPError, one_line


def sentence(case: str) -> str:
    """Return what is said about a model."""
    model, inputs = make(case)
    try:
        exactness = dmbp.linearize(model, inputs, target=0).exactness
    except DMBPError as error:
        return one_line(error)
    except Exception as error:  # whatever reaches the user as a traceback
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return f"explained, relative error {exactness:.0e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help="some of the models; all by default")
    chosen = parser.parse_args().cases or list(CASES)
    warnings.simplefilter("ignore")
    print("| model | what dmbp says |\n| --- | --- |")
    for case in chosen:
        print(f"| {case} | {sentence(case)} |", flush=True)


if __name__ == "__main__":
    main()
