"""English sentences that every Python brings along: what the docstrings of its standard library say first.

They are an OOD set for classifiers of texts that are not about programming: real sentences with words of another
domain, which words of the ID texts in another order are not.
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
    """Return the sentences, at most :data:`COUNT`, in a random order that is always the same.

    They are those of the running Python: another version has others. Nothing is imported or run. There are none where
    the standard library has no source files.
    """
    different_texts = dict.fromkeys(_first_paragraphs())  # each once, in the order they are met
    texts = list(different_texts)
    # RandomState's stream never changes between numpy versions, unlike default_rng's.
    order = np.random.RandomState(0).permutation(len(texts))
    chosen = [texts[index] for index in order[:COUNT]]
    return tuple(chosen)


def _first_paragraphs() -> Iterator[str]:
    """Yield the first paragraph of each docstring that is a sentence or two, module after module."""
    for path in _modules():
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue  # other files have sentences enough
        for node in ast.walk(tree):
            if not isinstance(node, _DOCUMENTED):
                continue
            docstring = ast.get_docstring(node) or ""
            paragraph = re.split(r"\n\s*\n", docstring)[0]
            text = " ".join(paragraph.split())
            if _is_prose(text):
                yield text


def _is_prose(text: str) -> bool:
    """Return whether a text is a sentence or a few, and neither a signature nor an example."""
    if not text[:1].isupper() or not text.endswith("."):
        return False
    words = len(text.split())
    return _FEWEST_WORDS <= words <= _MOST_WORDS


def _modules() -> list[Path]:
    """Return the files of public modules of the standard library that are one file each, sorted by name."""
    folder = Path(sysconfig.get_path("stdlib"))
    files = []
    for name in sorted(sys.stdlib_module_names):
        file = folder / f"{name}.py"
        if not name.startswith("_") and file.is_file():
            files.append(file)
    return files
