"""The notebooks in examples/ run from top to bottom in a folder of their own, and are kept without outputs."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        assert cell.cell_type != "code" or (not cell.outputs and cell.execution_count is None)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    """In a kernel with decode processes; what it shows is pictures, charts and tables."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    shown = "".join(output.data.get("text/html", "") for output in outputs if output.output_type == "execute_result")
    assert shown.count("data:image/jpeg") >= 12 and "<svg" in shown and "estimated noise" in shown
    assert (tmp_path / "tables" / "report.html").exists()
    printed = [output.text for output in outputs if output.output_type == "stream" and output.name == "stdout"]
    kept, still_wrong, wrong = (int(word) for word in printed[-1].split() if word.isdigit())
    assert wrong == 30 and 80 <= kept <= 92 and still_wrong <= 2
