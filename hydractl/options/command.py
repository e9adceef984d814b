"""A call of a verb by the program itself, with objects: it runs, and it is written as one types it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydractl.expressions.models import ModelRef
from hydractl.log import Log
from hydractl.options.call import Call, gather
from hydractl.options.verbs import declared


@dataclass(frozen=True)
class Command:
    """One call of a verb.

    Attributes:
        verb: the verb.
        models: its MODEL arguments.
        arguments: the values of its options, by the names of its parameters.
    """

    verb: str
    models: Sequence[str | ModelRef]
    arguments: Mapping[str, object]

    def call(self, log: Log) -> Call:
        """Return the call as the command line makes it: no file of defaults and no variable is read."""
        call = gather(declared(self.verb), {"model": list(self.models), **self.arguments})
        call.log = log
        return call

    def run(self, log: Log) -> Any:
        """Run the verb, and return what its function returns on the command line."""
        return self.call(log).run()

    def words(self) -> list[str]:
        """Return the command line as one types it, as a list of words without ``hydractl``.

        Objects in memory stand there by their names. This is the inverse of how a command line is read.
        """
        words = [self.verb, *map(str, self.models)]
        for name, value in self.arguments.items():
            words += declared(self.verb).by_name[name].words(value)
        return words
