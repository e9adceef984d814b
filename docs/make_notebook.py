"""Write docs/tutorial.ipynb from docs/tutorial.md. A test holds that the notebook is current."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("tutorial.md")
_BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


def cells(page: str) -> list[tuple[str, str]]:
    """The page as cells: ``markdown``, ``python`` or ``sh``, and the text of each."""
    found, end = [], 0
    for block in _BLOCK.finditer(page):
        found += [("markdown", page[end : block.start()]), (block[1], block[2])]
        end = block.end()
    return [(kind, text.strip("\n")) for kind, text in [*found, ("markdown", page[end:])] if text.strip()]


def notebook(page: str) -> dict[str, Any]:
    """The notebook (format 4.5); commands run by ``%%bash``, which stops at the first that fails."""
    written: list[dict[str, Any]] = []
    for number, (kind, text) in enumerate(cells(page)):
        source = f"%%bash\nset -e\n{text}" if kind == "sh" else text
        code = {} if kind == "markdown" else {"execution_count": None, "outputs": []}
        name = {"cell_type": "code" if code else "markdown", "id": f"cell-{number}", "metadata": {}}
        written.append({**name, **code, "source": source.splitlines(keepends=True)})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": written, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def text() -> str:
    """The file."""
    return json.dumps(notebook(PAGE.read_text(encoding="utf-8")), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PAGE.with_suffix(".ipynb").write_text(text(), encoding="utf-8")
