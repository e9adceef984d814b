"""Write docs/tutorial.ipynb from docs/tutorial.md; a test holds that it is current and that every cell was run.

    python docs/make_notebook.py               # keeps the outputs of cells that are unchanged
    python docs/make_notebook.py --run FOLDER  # runs all cells, where FOLDER holds the model and the data of the page

The second form needs ``pip install 'hydractl[notebook,datasets,deploy]'``.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("tutorial.md")
NOTEBOOK = PAGE.with_suffix(".ipynb")
_BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_LONGEST_CELL = 3600  # seconds
# What is not the same in two runs: the place of a cell in a warning, lines with times, advice about ipywidgets.
_CELL_FILE = re.compile(r"\S*ipykernel_\S*?\.py:\d+: ")
_OF_ONE_RUN = re.compile(r"\d s\b|samples/s|TqdmWarning|autonotebook")


def cells(page: str) -> list[tuple[str, str]]:
    """Return the page as cells: ``markdown``, ``python`` or ``sh``, and the text of each."""
    parts: list[tuple[str, str]] = []
    end = 0
    for block in _BLOCK.finditer(page):
        parts.append(("markdown", page[end : block.start()]))
        parts.append((block[1], block[2]))
        end = block.end()
    parts.append(("markdown", page[end:]))
    return [(kind, text.strip("\n")) for kind, text in parts if text.strip()]


def notebook(page: str, outputs: dict[str, list[Any]]) -> dict[str, Any]:
    """Return the notebook (format 4.5); commands run by ``%%bash``, which stops at the first that fails.

    Args:
        page: the text of the page.
        outputs: what cells gave, by their source; a cell that is not there counts as one that was not run.
    """
    written: list[dict[str, Any]] = []
    code_cells = 0
    for number, (kind, text) in enumerate(cells(page)):
        cell = {"id": f"cell-{number}", "metadata": {}}
        if kind == "markdown":
            written.append({"cell_type": "markdown", **cell, "source": text.splitlines(keepends=True)})
            continue
        source = f"%%bash\nset -e\n{text}" if kind == "sh" else text
        code_cells += 1
        was_run = source in outputs
        run = {"execution_count": code_cells if was_run else None, "outputs": outputs.get(source, [])}
        written.append({"cell_type": "code", **cell, **run, "source": source.splitlines(keepends=True)})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": written, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def stored_outputs() -> dict[str, list[Any]]:
    """Return the outputs that the notebook holds, by the source of their cells."""
    if not NOTEBOOK.exists():
        return {}
    outputs = {}
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code" and cell["execution_count"] is not None:
            outputs["".join(cell["source"])] = cell["outputs"]
    return outputs


def fresh_outputs(page: str, folder: Path) -> dict[str, list[Any]]:
    """Run all cells, in a folder of links to the model and the data, and return their outputs."""
    import nbclient
    import nbformat

    whole = nbformat.reads(json.dumps(notebook(page, {})), as_version=4)
    with tempfile.TemporaryDirectory() as place:
        for path in folder.iterdir():
            Path(place, path.name).symlink_to(path.resolve())
        client = nbclient.NotebookClient(whole, timeout=_LONGEST_CELL, resources={"metadata": {"path": place}})
        client.execute()
        outputs = {}
        for cell in whole.cells:
            if cell.cell_type == "code":
                # What is displayed are progress bars, empty when they are done.
                told = [output for output in cell.outputs if output["output_type"] != "display_data"]
                printed = [_printed(output, place) for output in _joined(told)]
                outputs[cell.source] = [output for output in printed if output.get("text") != ""]
    return outputs


def _printed(output: dict[str, Any], place: str) -> dict[str, Any]:
    """Return one output without what differs from run to run: the folder, colours, times, numbers of executions."""
    plain: dict[str, Any] = json.loads(json.dumps(output).replace(f"{place}/", ""))
    if "execution_count" in plain:
        plain["execution_count"] = None
    if plain["output_type"] == "stream":
        lines = _COLOURS.sub("", plain["text"]).splitlines(keepends=True)
        kept = [_CELL_FILE.sub("", line) for line in lines if not _OF_ONE_RUN.search(line)]
        plain["text"] = "".join(kept)
    return plain


def _joined(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return outputs with what was written to one stream, piece by piece, in one piece."""
    joined: list[dict[str, Any]] = []
    for output in outputs:
        goes_on = bool(joined) and output.get("name") is not None and joined[-1].get("name") == output["name"]
        if goes_on:
            joined[-1]["text"] += output["text"]
        else:
            joined.append(output)
    return joined


def text(outputs: dict[str, list[Any]]) -> str:
    """Return the text of the notebook's file."""
    written = notebook(PAGE.read_text(encoding="utf-8"), outputs)
    return json.dumps(written, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write the notebook."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="run all cells on the model and data in this folder")
    arguments = parser.parse_args()
    outputs = stored_outputs()
    if arguments.run is not None:
        outputs = fresh_outputs(PAGE.read_text(encoding="utf-8"), arguments.run)
    NOTEBOOK.write_text(text(outputs), encoding="utf-8")


if __name__ == "__main__":
    main()
