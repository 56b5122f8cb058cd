"""The notebook of the documentation runs as it stands, and shows what it says."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.conftest import ROOT

NOTEBOOK = ROOT / "docs" / "notebooks" / "explain.ipynb"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_the_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    notebook: Any = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": tmp_path}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert [k.text for k in outputs if k.output_type == "stream" and k.name == "stderr"] == []
    shown: list[Any] = [output.data for output in outputs if output.output_type == "execute_result"]
    pictures = [data for data in shown if "image/png" in data]
    assert len(pictures) == 5
    assert pictures[0]["text/html"].startswith("<iframe srcdoc=")
    assert shown[-1]["text/plain"] == "True"
    assert (tmp_path / "person.png").stat().st_size > 1000
