"""English sentences that come with every Python: the first paragraphs of its standard library's docstrings.

They serve as an OOD set for classifiers of texts that are not about programming. They are real sentences about another
domain, which the words of the ID texts in shuffled order would not be.
"""

from __future__ import annotations

import ast
import re
import sys
import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np

COUNT = 1000
_FEWEST_WORDS, _MOST_WORDS = 5, 40
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@lru_cache(maxsize=1)
def docstrings() -> tuple[str, ...]:
    """Return at most :data:`COUNT` sentences, in a random order that is always the same.

    The sentences come from the Python that runs; another version has other sentences. No module is imported or run.
    The tuple is empty if the standard library is installed without source files.
    """
    different_texts = dict.fromkeys(_first_paragraphs())  # removes repeated texts and keeps the order
    texts = list(different_texts)
    # RandomState's stream never changes between numpy versions, unlike default_rng's.
    order = np.random.RandomState(0).permutation(len(texts))
    chosen = [texts[index] for index in order[:COUNT]]
    return tuple(chosen)


def _first_paragraphs() -> Iterator[str]:
    """Yield, module after module, the first paragraph of each docstring that consists of one or a few sentences."""
    for path in _modules():
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue  # a file that cannot be parsed is skipped: the other files have enough sentences
        for node in ast.walk(tree):
            if not isinstance(node, _DOCUMENTED):
                continue
            docstring = ast.get_docstring(node) or ""
            paragraph = re.split(r"\n\s*\n", docstring)[0]
            text = " ".join(paragraph.split())
            if _is_prose(text):
                yield text


def _is_prose(text: str) -> bool:
    """Return whether a text consists of one or a few sentences, and is neither a signature nor an example."""
    if not text[:1].isupper() or not text.endswith("."):
        return False
    words = len(text.split())
    return _FEWEST_WORDS <= words <= _MOST_WORDS


def _modules() -> list[Path]:
    """Return the source files of the public standard-library modules that are single files, sorted by name."""
    folder = Path(sysconfig.get_path("stdlib"))
    files = []
    for name in sorted(sys.stdlib_module_names):
        file = folder / f"{name}.py"
        if not name.startswith("_") and file.is_file():
            files.append(file)
    return files
