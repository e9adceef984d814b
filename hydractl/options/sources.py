"""The sources of options beside Python: flags, ``HYDRACTL_*`` variables and YAML files.

A flag wins over a variable, this over the verb's own mapping in ``hydra.yaml``, this over a top-level key there, and
this over the built-in value.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from hydractl.options.option import Option, Raw
from hydractl.options.suggestions import ENVIRONMENT, about_option
from hydractl.options.yaml_files import Contents

CONFIG, DEBUG = "HYDRACTL_CONFIG", "HYDRACTL_DEBUG"

# The rank of each source of a value: a higher rank wins. A built-in default has rank 0.
RECIPE, SHARED_KEY, VERB_KEY, VARIABLE, FLAG = 1, 2, 3, 4, 5


class Given(NamedTuple):
    """A text that was given for an option.

    Attributes:
        raw: the text, or the argument of a Python call.
        source: where it was given: ``flag``, the name of a variable, or the file and the key in it.
        rank: the rank of that source; a higher one wins.
    """

    raw: Any
    source: str
    rank: int


def deciding_text(
    item: Option, verb: str, flags: Mapping[str, object], environ: Mapping[str, str], config: Contents
) -> Given | None:
    """Return the text that decides an option: that of the flag, else of the variable, else of the file of defaults.

    Args:
        item: the option.
        verb: the verb that has it.
        flags: the values of the command line, by field name; None and an empty list mean "not given".
        environ: the environment variables.
        config: the contents of the file of defaults.

    Returns:
        None if the option is not given anywhere.
    """
    flag = flags.get(item.name)
    variable: Raw | None = environ.get(item.variable)
    if item.flag_only or not variable:  # an empty one counts as not set: that is how a shell unsets it for one command
        variable = None
    elif item.many and not item.split:  # the items of a list without commas stand on a line each
        variable = environ[item.variable].splitlines()
    by_rank = [
        Given(None if isinstance(flag, list) and not flag else flag, "flag", FLAG),
        Given(variable, item.variable, VARIABLE),
        Given(config.values[verb].get(item.key), f"{config.name}:{verb}.{item.key}", VERB_KEY),
        Given(config.values[None].get(item.key), f"{config.name}:{item.key}", SHARED_KEY),
    ]
    return next((given for given in by_rank if given.raw is not None), None)


def paths_out_of_folder(item: Option, text: Given, value: Any, config: Contents) -> list[str]:
    """Return a problem for each path by which a ``hydra.yaml`` that was only found reaches out of its folder.

    A folder of somebody else may bring such a file. Nobody named it, so what it names for writing has to stay below
    the folder, and so has a text file whose lines would go into an output: it could be a secret of the user.

    Args:
        item: the option.
        text: the text that decides it.
        value: its typed value; None if it could not be read.
        config: the contents of the file of defaults.
    """
    is_of_file = text.rank in (SHARED_KEY, VERB_KEY)
    if config.folder is None or not is_of_file or value is None or not (item.writes or item.copied):
        return []
    paths = value if isinstance(value, list) else [str(value)]

    problems = []
    folder = os.path.realpath(config.folder)
    for path in paths:
        try:
            target = os.path.realpath(os.path.join(folder, os.path.expanduser(path)))
        except ValueError:  # a NUL in the name: no file has it
            continue
        is_below = os.path.commonpath([folder, target]) == folder
        is_meant = item.writes or os.path.isfile(target)  # else it is no file, but e.g. a template
        if is_meant and not is_below:
            problems.append(
                f"{item.flag} {path} ({text.source}) leads out of this folder; give it on the command line, or say "
                f"--config {config.name}"
            )
    return problems


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Return a line for each ``HYDRACTL_*`` variable that no verb reads; most are misspelt."""
    names = [name for name in sorted(environ) if name.startswith("HYDRACTL_") and name not in (CONFIG, DEBUG)]
    if not names:  # then the options of all verbs need not be read, which takes time
        return []
    known_variables = {*ENVIRONMENT.names(None).values(), "HYDRACTL_FORCE"}  # this is refused where it is read
    lines = []
    for name in names:
        if name not in known_variables:
            meant = about_option(name.removeprefix("HYDRACTL_"), None, ENVIRONMENT)
            lines.append(f"the environment variable {name} is not read by hydractl{meant}")
    return lines
