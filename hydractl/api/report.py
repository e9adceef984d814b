"""The signature of ``report``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from hydractl.api.options import Config, DryRun, Force, Output, io, requiring
from hydractl.api.values import JsonDocument, Path, Texts
from hydractl.api.verb import verb
from hydractl.options.call import checking
from hydractl.options.option import ends_in
from hydractl.options.signature import opt

if TYPE_CHECKING:
    from hydractl.api.results import Result

reporting = partial(opt, group="Reporting")


@verb("report", before=lambda call: call.drop_shared("model"))  # documents must be named for this verb
def make_report(
    documents: Annotated[
        JsonDocument | Sequence[JsonDocument],
        io(
            "A document that eval, bench or study wrote; several of eval with --over; - is stdin",
            metavar="DOCUMENT...",
            kind="documents",
        ),
    ],
    *,
    html: Path | None = reporting(
        "Write a report of an eval as one .html file, with tables and plots",
        metavar="FILE",
        check=ends_in(".html", any_case=True),
        often=True,
        writes=True,
    ),
    over: Literal["seed", "data"] | None = reporting(
        "Show the means of several evals, with sample standard deviations, over seeds (rows with the same name "
        "before #) or over data sets (rows with the same name); -o keeps them",
        often=True,
    ),
    require: Texts = requiring(
        "Exit with 4 unless it holds in every row of an eval, as [NAME:]KEY>=NUMBER; repeat it for more",
        default=(),
        group="Reporting",
    ),
    output: Output = None,
    force: Force = False,
    dry_run: DryRun = False,
    config: Config = None,
) -> Result:
    """Show, draw and check what :func:`evaluate`, :func:`bench` and :func:`study` returned or wrote.

    Args:
        documents: a result, or the file of one; several of :func:`evaluate` with ``over``.

    Returns:
        The document that was reported on, or the means of several; ``files`` has what was written.

    Raises:
        UsageError, InputError: an option or a document is wrong, or runs cannot be averaged.
        RequirementError: one of ``require`` is not met.
        OutputError: ``html`` or ``output`` exists, and ``force`` is not set.
    """
    with checking() as call:
        if output is not None and over is None:
            call.of("output", "needs --over: only means are a new document")

    from hydractl.verbs.report import run

    return run(call).returned()
