"""The sources of options beside Python: flags, ``HYDRACTL_*`` variables and YAML files.

A flag wins over a variable, this over the verb's own mapping in ``hydra.yaml``, this over a top-level key there, and
this over the built-in value.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from hydractl.options.option import Option, Raw
from hydractl.options.registry import VERBS
from hydractl.options.suggestions import about_option, by_variable, names_of_options
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
    """Return the text that an option gets its value from, with its source; None if it is not given anywhere.

    It is the first that there is, of: the flag, the environment variable, the verb's own key in the file of defaults,
    the key for all verbs there.

    Args:
        item: the option.
        verb: the verb that has it.
        flags: the values of the command line, by the name of the option; None and an empty list mean "not given".
        environ: the environment variables.
        config: the contents of the file of defaults.
    """
    flag = flags.get(item.name)
    if isinstance(flag, list) and not flag:
        flag = None

    # A variable: not for every option. An empty one counts as not set, which is how a shell unsets it for one command.
    variable: Raw | None = environ.get(item.variable)
    if item.flag_only or not variable:
        variable = None
    elif item.many and not item.split:  # the items of a list without commas stand on a line each
        variable = environ[item.variable].splitlines()

    # From the strongest source to the weakest; raw is None where the option is not given.
    by_rank = [
        Given(flag, "flag", FLAG),
        Given(variable, item.variable, VARIABLE),
        Given(config.values[verb].get(item.key), f"{config.name}:{verb}.{item.key}", VERB_KEY),
        Given(config.values[None].get(item.key), f"{config.name}:{item.key}", SHARED_KEY),
    ]
    return next((given for given in by_rank if given.raw is not None), None)


def paths_out_of_folder(item: Option, text: Given, value: Any, config: Contents) -> list[str]:
    """Return a problem for each path by which the ``hydra.yaml`` of a folder leads out of it; empty if there is none.

    A security check: the file is read because it lies in the working folder, which may be somebody else's, and not
    because the user named it. So it may neither have files written elsewhere, nor copy lines of a text file from
    elsewhere, perhaps a secret of the user, into an output. A file named by ``--config`` (``config.folder`` is None)
    may do both.

    Args:
        item: the option.
        text: the text that decides it.
        value: its typed value; None if it could not be read.
        config: the contents of the file of defaults.
    """
    # Only values that come from such a file, of options that name an output or a text file to copy.
    is_of_file = text.rank in (SHARED_KEY, VERB_KEY)
    if config.folder is None or not is_of_file or value is None or not (item.writes or item.copied):
        return []
    paths = value if isinstance(value, list) else [str(value)]

    # Compare real paths, because a symbolic link or ".." may lead outside.
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
    """Return a warning for each ``HYDRACTL_*`` variable that no verb reads, with what was probably meant."""
    names = [name for name in sorted(environ) if name.startswith("HYDRACTL_") and name not in (CONFIG, DEBUG)]
    if not names:  # then the options of all verbs need not be read, which takes time
        return []
    known_variables = {*names_of_options(list(VERBS), by_variable).values(), "HYDRACTL_FORCE"}  # that is refused later
    lines = []
    for name in names:
        if name not in known_variables:
            meant = about_option(name.removeprefix("HYDRACTL_"), None, by_variable)
            lines.append(f"the environment variable {name} is not read by hydractl{meant}")
    return lines
