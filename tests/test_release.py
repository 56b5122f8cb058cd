"""What a release says of itself: one version, one address, tested floors, pinned actions."""

import re
import tomllib

import pytest

import dmbp
from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def floors(lines: list[str], sign: str) -> dict[str, str]:
    """Name and version of lines such as "torch>=2.6", without trailing zeros."""
    pairs = (line.split(sign) for line in lines)
    return {name.strip(): re.sub(r"(\.0)+$", "", version.strip()) for name, version in pairs}


REQUIRED = floors(PROJECT["dependencies"], ">=")


def test_the_version_is_the_same_everywhere() -> None:
    assert f"\nversion: {dmbp.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f'\n  version: "{dmbp.__version__}"\n' in (ROOT / "recipe/recipe.yaml").read_text()
    assert f"\n## {dmbp.__version__} – 20" in (ROOT / "CHANGELOG.md").read_text()


def test_the_address_is_the_same_everywhere() -> None:
    source = PROJECT["urls"]["Source"]
    files = ["CITATION.cff", "recipe/recipe.yaml", ".github/ISSUE_TEMPLATE/config.yml"]
    for file in files:
        assert f"{source}" in (ROOT / file).read_text(), file
    assert all(
        url.startswith(source) for name, url in PROJECT["urls"].items() if name != "Documentation"
    )


def test_the_lowest_versions_are_those_that_are_tested() -> None:
    lines = (ROOT / "constraints-lowest.txt").read_text().splitlines()
    assert floors([line for line in lines if not line.startswith("#")], "==") == REQUIRED


def test_the_recipe_requires_what_the_package_requires() -> None:
    recipe = (ROOT / "recipe/recipe.yaml").read_text()
    listed = re.search(r"\n  run:\n(.*?)\n\n", recipe, re.DOTALL)
    assert listed
    lines = [line.strip(" -") for line in listed[1].splitlines() if "python >=" not in line]
    other_names = {"pytorch": "torch", "matplotlib-base": "matplotlib"}
    found = floors(lines, ">=")
    assert {other_names.get(name, name): version for name, version in found.items()} == REQUIRED


def test_the_readme_of_the_package_has_no_relative_links() -> None:
    pytest.importorskip("hatchling", reason="the build back end is not installed")
    from hatch_build import with_absolute_links

    source, tag = PROJECT["urls"]["Source"], f"v{dmbp.__version__}"
    text = with_absolute_links((ROOT / "README.md").read_text(), source, tag)
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert len(links) > 10
    for link in links:
        kind, _, path = link.removeprefix(f"{source}/").partition(f"/{tag}/")
        assert kind == ("raw" if path.endswith(".png") else "blob"), link
        assert (ROOT / path).exists(), link


def test_actions_are_pinned_by_commit() -> None:
    workflows = sorted((ROOT / ".github/workflows").glob("*.yml"))
    used = [line for file in workflows for line in re.findall(r"uses: (.*)", file.read_text())]
    assert used
    for action in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action
