"""The results that functions return to a Python program: JSON documents with fields, tables and data frames."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hydractl.cli.answer import table_html, table_text
from hydractl.errors import UsageError, install_hint
from hydractl.verbs.outcome import Outcome

if TYPE_CHECKING:
    import pandas

Row = Mapping[str, Any]
"""One row of a result, by key."""


class Document(dict[str, Any]):
    """A JSON document: keys are texts, numbers are finite, and ``schema`` names its form (see the page on files).

    ``print`` shows the table of the command line, and a notebook shows it with its colours.

    Attributes:
        files: the files that were written, in the order a person should read them.
        outcome: what the command line prints of it.
    """

    rows_key: ClassVar[str | None] = None
    """The key of the list of rows; None for documents without one."""

    def __init__(self, document: Mapping[str, object] | Outcome, files: Sequence[Path] = ()) -> None:
        self.outcome = document if isinstance(document, Outcome) else Outcome(dict(document), list(files))
        super().__init__(self.outcome.document)
        self.files = list(self.outcome.files)

    @property
    def schema(self) -> str:
        """The kind of document and its version, such as ``hydractl.eval/2``."""
        return str(self["schema"])

    @property
    def warnings(self) -> list[str]:
        """Sentences on what could mislead a reader of the numbers."""
        return list(self.get("warnings") or [])

    @property
    def rows(self) -> list[Row]:
        """The rows, one for each model or step; a document without rows is its own single row."""
        if self.rows_key is None:
            return [self]
        return list(self[self.rows_key])

    def to_dict(self) -> dict[str, Any]:
        """Return a plain dictionary that shares nothing with this document."""
        return copy.deepcopy(dict(self))

    def to_pandas(self) -> pandas.DataFrame:
        """Return the rows as a data frame; keys within keys become columns such as ``id.accuracy``.

        Raises:
            UsageError: pandas is not installed.
        """
        try:
            import pandas
        except ModuleNotFoundError:
            raise UsageError("the package pandas is not installed", hint=install_hint("pandas")) from None
        return pandas.json_normalize([dict(row) for row in self.rows])

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._summary()}>"

    def __str__(self) -> str:
        return table_text(self)

    def _repr_html_(self) -> str:
        return table_html(self)

    def _summary(self) -> str:
        return self.schema


class Scores(Document):
    """Importance scores of attention heads; ``prune(scores=...)`` takes them."""

    @property
    def sites(self) -> dict[str, list[float]]:
        """By the path of each attention module, one score per head; heads with high scores are kept."""
        return dict(self["sites"])

    @property
    def rows(self) -> list[Row]:
        """One row for each head, with its ``site``, ``head`` and ``score``."""
        rows: list[Row] = []
        for site, scores in self.sites.items():
            for head, score in enumerate(scores):
                rows.append({"site": site, "head": head, "score": score})
        return rows

    def _summary(self) -> str:
        return f"{len(self.rows)} heads of {len(self.sites)} sites"


class Circuit(Document):
    """The order in which a search removed heads; ``prune(circuit=...)`` takes it."""

    rows_key = "removed"

    @property
    def removed(self) -> list[Row]:
        """One row for each removal, with its ``site``, ``head`` and the score after it."""
        return self.rows

    def _summary(self) -> str:
        return f"{len(self.removed)} heads removed for {self.get('objective')}"


class Circuits(Document):
    """The circuits of several objectives, in the order in which these were asked for."""

    rows_key = "circuits"

    @property
    def circuits(self) -> list[Circuit]:
        """Each of the circuits."""
        return [Circuit(circuit) for circuit in self["circuits"]]

    def _summary(self) -> str:
        objectives = [str(circuit.get("objective")) for circuit in self["circuits"]]
        return ", ".join(objectives)


class Exports(Document):
    """The files that :func:`hydractl.export` wrote, each with its format, size and check."""

    rows_key = "exports"

    def _summary(self) -> str:
        paths = [str(row["path"]) for row in self.rows]
        return ", ".join(paths)


class _ByModel(Document):
    """A result with rows for models."""

    name_key: ClassVar[str]

    @property
    def names(self) -> list[str]:
        """The names of the rows, in order, without repetition."""
        names = [str(row[self.name_key]) for row in self.rows]
        return list(dict.fromkeys(names))

    def row(self, name: str) -> Row:
        """Return the first row of this name.

        Raises:
            KeyError: no row has this name.
        """
        for row in self.rows:
            if row[self.name_key] == name:
                return row
        raise KeyError(f"no row is named {name!r}; the rows are {', '.join(self.names)}")

    def _summary(self) -> str:
        return ", ".join(self.names)


class Evaluation(_ByModel):
    """The figures that :func:`hydractl.evaluate` measured: one row for each model."""

    rows_key = "models"
    name_key = "name"

    @property
    def models(self) -> list[Row]:
        """The rows: ``name``, ``id`` (accuracy, NLL, ECE ...), ``ood`` by the name of the set, ``diversity``."""
        return self.rows

    @property
    def conventions(self) -> Mapping[str, object]:
        """How the numbers are defined."""
        return dict(self["conventions"])


class Predictions(Document):
    """The predictions of :func:`hydractl.predict`: a summary, and a row for each sample."""

    def __init__(self, document: Mapping[str, object], files: Sequence[Path] = (), rows: Sequence[Row] = ()) -> None:
        super().__init__(document, files)
        self._rows = list(rows)

    @property
    def rows(self) -> list[Row]:
        """The samples: ``id``, ``predicted``, ``confidence``, ``ood_score``, ``is_ood`` ..."""
        return self._rows

    @property
    def ood_share(self) -> float | None:
        """The share of samples that are flagged; None without a threshold."""
        flagged = self.get("ood")
        if flagged is None:
            return None
        return flagged["share"]

    def _summary(self) -> str:
        return f"{self['n']} samples by {self['model']['name']}"


class Benchmark(_ByModel):
    """The figures that :func:`hydractl.bench` measured: one row for each model, batch size and number format."""

    rows_key = "results"
    name_key = "model"

    @property
    def results(self) -> list[Row]:
        """The rows: ``model``, ``batch_size``, ``dtype``, ``latency_ms``, ``throughput_per_s``, ``ratio`` ..."""
        return self.rows


class Study(Document):
    """The findings of :func:`hydractl.study`: ``print`` shows its rows and the verdict."""

    rows_key = "rows"

    @property
    def answer(self) -> str:
        """The verdict in a word or two, such as ``score helps``."""
        return str(self["verdict"]["answer"])

    @property
    def verdict(self) -> list[str]:
        """The sentences of the verdict."""
        return list(self["verdict"]["lines"])

    def _summary(self) -> str:
        return self.answer
