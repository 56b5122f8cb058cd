"""Importing dmbp does not import all of Captum, and Captum works as ever afterwards."""

import subprocess
import sys

import pytest

SLOW = ["captum.attr._core.llm_attr", "captum.attr._utils.visualization", "matplotlib.pyplot"]


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_importing_dmbp_leaves_the_rest_of_captum_out() -> None:
    code = f"import dmbp, sys; dmbp.DMBP; print([name for name in {SLOW} if name in sys.modules])"
    assert run(code) == "[]"


@pytest.mark.slow
@pytest.mark.parametrize(
    "use",
    [
        "import captum; captum.attr.IntegratedGradients; captum.__version__",
        "from captum.attr import *; IntegratedGradients, Attribution",
        "import captum; dir(captum.attr).index('Saliency')",
    ],
)
def test_captum_is_whole_afterwards(use: str) -> None:
    check = "from captum.attr import Attribution; print(issubclass(dmbp.DMBP, Attribution))"
    assert run(f"import dmbp; dmbp.DMBP\n{use}\n{check}") == "True"
