"""The rows that a study compares: models made from the studied model, each declared with how it is made.

Rows of circuits and of pruned weights are declared here; rows of ensemble methods are declared in ``hydractl/methods``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial

from hydractl.errors import InputError
from hydractl.expressions.models import ModelRef
from hydractl.methods import rows_of_methods
from hydractl.methods.study_rows import MEMBERS, AsMeasured, BySeeds, ByTraining, StudyRow
from hydractl.studies.plan import Plan, Row, half
from hydractl.studies.scale import THREE

_NOTHING_AVERAGED = "none"
"""The value of ``fuse --merge`` for the rivals: their authors run each member as it was trained. Rows of pruned members
are fused by the default, as the paper averages MLPs."""


@dataclass(frozen=True)
class RowKind:
    """The rows of one name.

    Attributes:
        make: adds them to a plan, with the steps that make them.
        default: whether they are made by default, or only if they are asked for.
        needs_training_data: whether they need training data.
        needs_labels: whether these need labels.
        needs_classifier: whether they need a classifier, which a zero-shot model does not have.
        needs_images: whether they need a model that reads images.
    """

    make: Callable[[Plan], None]
    default: bool = True
    needs_training_data: bool = False
    needs_labels: bool = True
    needs_classifier: bool = False
    needs_images: bool = False


# --- circuits ---------------------------------------------------------------------------------------------------------


def single(plan: Plan) -> None:
    """Add the row of the studied model itself."""
    plan.add_row(Row("single", plan.model))


def whole_avg(plan: Plan) -> None:
    """Add rows of two members: the whole model, and one pruned by the circuit (search) for accuracy and OOD detection.

    A twelfth, a sixth and a quarter of the heads are removed. If two of these are the same number, because the model
    has few heads, there is one row for both.
    """
    counts = [plan.share(part) for part in (1 / 12, 1 / 6, 1 / 4)]
    for count in dict.fromkeys(counts):  # without repetition
        circuit = plan.circuit("avg")
        member = plan.pruned_by_circuit(f"avg@{count}", circuit, remove=count)
        plan.add_fused(f"whole-avg@{count}", [plan.model, member])


def whole_auto(plan: Plan) -> None:
    """Add the row of the whole model and the same circuit, with as many heads removed as ``--max-drop`` allows.

    The search has measured how many these are.
    """
    member = plan.pruned_by_circuit("auto", plan.circuit("avg"), max_drop=plan.request.max_drop)
    plan.add_fused("whole-auto", [plan.model, member])


def whole_late(plan: Plan) -> None:
    """Add the row of the whole model and a circuit in the last third of the sites (attention layers).

    Both members share everything before these sites, so that part runs only once.
    """
    circuit, count = plan.late_circuit()
    member = plan.pruned_by_circuit(f"late@{count}", circuit, remove=count)
    plan.add_fused(f"whole-late@{count}", [plan.model, member])


def whole_three(plan: Plan) -> None:
    """Add the row of the whole model and three circuits: for accuracy, for OOD detection, and for both.

    Each circuit has a sixth of the heads removed.
    """
    count = plan.share(1 / 6)
    members = [plan.model, *_pruned_by_three_circuits(plan, count)]
    plan.add_fused(f"whole-three@{count}", members)


def circuits(plan: Plan) -> None:
    """Add the row of the paper's three circuits, without the whole model; each has a third of the heads removed."""
    count = plan.share(1 / 3)
    members = list(_pruned_by_three_circuits(plan, count))
    plan.add_fused("circuits", members)


def _pruned_by_three_circuits(plan: Plan, count: int) -> Iterator[ModelRef]:
    """Plan a member for each of the three circuits, which remove ``count`` heads each; yield its file."""
    for objective in THREE:
        yield plan.pruned_by_circuit(f"{objective}@{count}", plan.circuit(objective), remove=count)


def taylor(plan: Plan) -> None:
    """Add the row of three members, pruned by Taylor scores on different samples."""
    plan.add_fused("taylor", list(_pruned_by_taylor_scores(plan)))


def _pruned_by_taylor_scores(plan: Plan) -> Iterator[ModelRef]:
    """Plan three members, a third of whose heads is removed by Taylor scores; yield the file of each."""
    count = plan.share(1 / 3)
    # Plan one member for each seed, taylor0, taylor1 and taylor2.
    for member, seed in enumerate(plan.seeds):
        arguments = {
            "method": "taylor",
            "scope": "global",
            "remove": count,
            "samples": 128,  # members differ only in their samples; with more, they would rank the heads alike
            "data": plan.request.train,
            "force": True,
            "seed": seed,
        }
        yield plan.pruned(f"taylor{member}", arguments)


# --- trainings --------------------------------------------------------------------------------------------------------


def circuits_tuned(plan: Plan) -> None:
    """Add the row of the three circuits, each fine-tuned."""
    members = _pruned_by_three_circuits(plan, plan.share(1 / 3))
    plan.add_fused("circuits-tuned", [plan.tuned(member) for member in members])


def taylor_tuned(plan: Plan) -> None:
    """Add the row of the three Taylor members, each fine-tuned."""
    members = _pruned_by_taylor_scores(plan)
    plan.add_fused("taylor-tuned", [plan.tuned(member) for member in members])


def trained(plan: Plan) -> None:
    """Add the row of the whole model, trained like the other rows: it shows how much of their gain is training."""
    (model,) = plan.trained_by_seeds("trained", {}, members=1)
    plan.add_file("trained", model)


KINDS: dict[str, RowKind] = {
    "single": RowKind(single),
    "whole-avg": RowKind(whole_avg),
    "whole-auto": RowKind(whole_auto, default=False),
    "whole-late": RowKind(whole_late),
    "whole-three": RowKind(whole_three),
    "circuits": RowKind(circuits),
    "taylor": RowKind(taylor, needs_training_data=True),
    "circuits-tuned": RowKind(circuits_tuned, default=False, needs_training_data=True),
    "taylor-tuned": RowKind(taylor_tuned, default=False, needs_training_data=True),
    "trained": RowKind(trained, default=False, needs_training_data=True),
}
"""The rows by the names of ``--rows``, in the order of the table; those of methods and of weights follow."""


def asked_for(names: Collection[str]) -> dict[str, RowKind]:
    """Return the rows that ``--rows`` asks for by these names, by name, in the order of the table.

    The single model is always among them. The name ``default`` stands for all rows that are made by default.
    """
    asked = {"single", *names}
    return {name: kind for name, kind in KINDS.items() if name in asked or (kind.default and "default" in asked)}


# --- methods ----------------------------------------------------------------------------------------------------------


def _add_row_of_method(plan: Plan, declared: StudyRow) -> None:
    """Add the row that an ensemble method declares to the plan, with the steps that its recipe asks for.

    ============================  ==========================================================================
    ``BySeeds``                   several trainings with different seeds, then fused
    ``ByTraining`` that trains    one training that leaves one file, or several members, which are then fused
    ``ByTraining`` that does not  one file that is made without a training, e.g. laplace
    ``AsMeasured``                no file; ``eval`` measures the model with other options
    ============================  ==========================================================================
    """
    name = declared.name
    heads_of_sites = list(plan.heads.values())  # by attention layer, the number of its heads
    match declared.recipe_for(heads_of_sites[0]):
        # Several trainings with different seeds, whose models are fused. Later options override earlier ones.
        case BySeeds(options, ensemble, of_classifiers):
            if plan.has_classifier:
                options = {**options, **of_classifiers}
            members = plan.trained_by_seeds(name, {"ensemble": ensemble, **options})
            plan.add_fused(name, members, merge=_NOTHING_AVERAGED)
        # One training that leaves several members, which are fused. The training has taken the name of the row.
        case ByTraining(ensemble, options) if ensemble.models() is not None:
            members = plan.trained(name, {"ensemble": ensemble, **options}, members=MEMBERS)
            plan.add_fused(name, members, merge=_NOTHING_AVERAGED, file=f"{name}.fused")
        # One training that leaves one file.
        case ByTraining(ensemble, options) if ensemble.trains:
            (model,) = plan.trained(name, {"ensemble": ensemble, **options})
            plan.add_file(name, model)
        # A method that trains nothing, such as laplace: finetune gets the data, and no epochs or learning rates.
        case ByTraining(ensemble):
            data = {"train": plan.request.train, "val": half(plan.request.val, 1)}
            options = {"ensemble": ensemble, **data, "force": True}
            (model,) = plan.made(plan.step("finetune", [plan.model], options, [f"{name}.st"]))
            plan.add_file(name, model)
        # No file is made: eval measures the studied model itself with other options, e.g. MC dropout.
        case AsMeasured(options):
            plan.add_row(Row(name, plan.model, options, stored=False))


for _declared in rows_of_methods():
    if _declared.name in KINDS:
        raise InputError(f"a method declares the row {_declared.name!r} of a study, a name that is taken")
    KINDS[_declared.name] = RowKind(
        partial(_add_row_of_method, declared=_declared),
        default=False,
        needs_training_data=_declared.needs_training_data,
        needs_labels=_declared.needs_labels,
        needs_classifier=_declared.needs_classifier,
        needs_images=_declared.needs_images,
    )


# --- weights ----------------------------------------------------------------------------------------------------------

_KEPT_WEIGHTS = 0.891
"""The share of weights that a ViT-B/16 keeps if a third of its heads is removed."""


def _add_row_of_pruned_weights(plan: Plan, name: str) -> None:
    """Add the row of a model some of whose single weights are pruned by a method, and which is then fine-tuned.

    Args:
        plan: the plan, which gets the row and its steps.
        name: the name of the row: ``oba``, or the name of a method followed by ``-weights``, which is cut off.
    """
    arguments: dict[str, object] = {
        "method": name.removesuffix("-weights"),
        "weights": _KEPT_WEIGHTS,
        "force": True,
    }
    if name == "oba":  # the only method that reads training data
        arguments["data"] = plan.request.train
        arguments["samples"] = 128  # per step; OBA takes many steps
    (pruned,) = plan.made(plan.step("prune", [plan.model], arguments, [f"{name}.st"]))
    plan.add_file(name, plan.tuned(pruned))


for _name in ("oba", "magnitude", "random-weights"):
    _maker = partial(_add_row_of_pruned_weights, name=_name)
    KINDS[_name] = RowKind(_maker, default=False, needs_training_data=True)
