"""The verbs: for each, where its options and its function are, and what its help says.

A new verb is one file and one entry here (``docs/way-of-a-command.md``). Importing this module reads no options, so
that the list of verbs can be shown quickly.
"""

from __future__ import annotations

from typing import NamedTuple


class Verb(NamedTuple):
    """One verb.

    Attributes:
        summary: one line for ``hydractl --help``.
        usage: what follows the verb in the usage line.
        about: what it does and returns, for its own help; empty if the summary is enough.
        examples: comments and commands, as they are printed.
        prints_table: whether the answer is the table itself and not a file, so that it is printed on any kind of
            output.
        logs_table: whether the log has the table where standard output gets the names of files alone: what was chosen
            is said nowhere else.
        signature: its function, as ``MODULE:NAME``, from whose signature the options come.
    """

    summary: str
    usage: str = "MODEL [options]"
    about: str = ""
    examples: str = ""
    prints_table: bool = False
    logs_table: bool = False
    signature: str = ""


VERBS: dict[str, Verb] = {
    "score": Verb(
        signature="hydractl.api.score:score",
        summary="Give every attention head an importance score",
        usage="MODEL [-o scores.json] [options]",
        about="Give every attention head an importance score: a JSON file that prune --scores reads.",
        examples="""
  # Taylor scores from 512 labelled samples
  hydractl score vit.st --method taylor --data cal.npz
  # piped into prune, without a file
  hydractl score vit.st --method taylor --keep 8 --data cal.npz -o - | hydractl prune vit.st --scores - --keep 8
""",
    ),
    "extract-circuit": Verb(
        signature="hydractl.api.extract_circuit:extract_circuit",
        summary="Rank heads by greedy search on validation data",
        usage="MODEL --val SPEC [--ood-val SPEC] [-o circuit.json] [options]",
        about=(
            "Remove heads one by one, each time the one whose removal leaves the best score on validation data. "
            "The resulting order also serves every smaller budget."
        ),
        examples="""
  # three circuits for three members, 8 heads a site
  hydractl extract-circuit vit.st --val val.npz --ood-val ood.npz --objective acc,ood,avg --keep 8
""",
    ),
    "prune": Verb(
        signature="hydractl.api.prune:prune",
        summary="Cut heads out of a model",
        usage="MODEL (--method NAME | --scores FILE | --circuit FILE | --mask FILE) [-o a.st] [options]",
        about="Cut heads out of a model and write the smaller model and its mask; or with --weights set single weights "
        "to zero.",
        examples="""
  # 8 heads per site by Taylor scores
  hydractl prune vit.st --method taylor --data cal.npz --keep 8
  # another member: another draw of samples
  hydractl prune --method taylor --keep 8 --seed 1 -o b.st
  # follow a circuit
  hydractl prune vit.st --circuit circuit.avg.json --keep 8 -o c.st
  # zeros for single weights, as many parameters left as without a third of the heads
  hydractl prune vit.st --weights 0.891 --method oba --data cal.npz -o oba.st
""",
    ),
    "finetune": Verb(
        signature="hydractl.api.finetune:finetune",
        summary="Fine-tune a pruned model",
        usage="MODEL... --train SPEC [--val SPEC] [-o a.st] [options]",
        about="Fine-tune a pruned model, without its removed heads; the best epoch on --val is kept. Several models "
        "are trained separately; -o then names their folder, as in out/.",
        examples="""
  # three epochs
  hydractl finetune a.st --train train.npz --val val.npz -o a.tuned.st
  # the last five blocks by SGD
  hydractl finetune a.st --train train.npz --optimizer sgd --lr 0.01 --train-last 5 --steps 10000
  # a recipe of the paper; the best of four learning rates is kept
  hydractl finetune a.st --train train/ --val val/ --recipe imagenet1k
  # three members of a deep ensemble: deep.0.st, deep.1.st, deep.2.st
  hydractl finetune vit.st --train train/ --val val/ --ensemble deep:3 -o deep.st
  # no training: a posterior of the classifier, of every member of a fused model
  hydractl finetune hydra.st --train train/ --val val/ --ensemble laplace -o hydra.laplace.st
  # resume after a kill
  hydractl finetune a.st --train train/ --val val/ --recipe imagenet1k --resume
""",
    ),
    "fuse": Verb(
        signature="hydractl.api.fuse:fuse",
        summary="Fuse pruned members into one model",
        usage="MODEL... [-o hydra.st] [options]",
        about="Fuse pruned members into one model file that gives their averaged prediction in one pass.",
        examples="""
  # three members
  hydractl fuse a.st b.st c.st -o hydra.st
  # exactly the members, nothing averaged
  hydractl fuse a.st b.st c.st --merge none -o hydra.st
""",
    ),
    "export": Verb(
        signature="hydractl.api.export:export",
        summary="Write a model as ONNX or for plain PyTorch",
        usage="MODEL [--format FORMATS] [-o hydra.onnx] [options]",
        about="Write a model, fused or not, as files that run without hydractl; each is run and compared with the "
        "model before it is kept.",
        examples="""
  # for ONNX Runtime: hydra.onnx
  hydractl export hydra.st
  # in two formats: hydra.onnx and hydra.pt2
  hydractl export hydra.st --format onnx,pt2
""",
    ),
    "eval": Verb(
        signature="hydractl.api.evaluate:evaluate",
        summary="Measure accuracy, calibration and OOD detection",
        usage="[NAME=]MODEL... --test SPEC [--ood NAME=SPEC]... [-o eval.json] [options]",
        about="Measure accuracy, calibration, OOD detection and diversity: one row per MODEL.",
        examples="""
  # a single model against a fused one
  hydractl eval single=vit.st hydra.st --test test.npz --ood svhn:far=svhn.npz
  # members run sequentially (of independent trainings: a deep ensemble)
  hydractl eval ensemble=a.st+b.st+c.st --test test.npz
  # a gate for scripts: exit code 4 when it fails
  hydractl eval hydra.st --test test.npz --ood svhn=svhn.npz --require 'ood_avg.auroc>=0.85'
""",
        prints_table=True,
    ),
    "bench": Verb(
        signature="hydractl.api.bench:bench",
        summary="Measure latency, memory and mult-adds",
        usage="[NAME=]MODEL... [-o bench.json] [options]",
        about="Measure latency, throughput, memory and mult-adds; ratios are to the first MODEL, in paired rounds.",
        examples="""
  # the fused model against the single one
  hydractl bench vit.st hydra.st --batch-size 1,8
  # and both against baselines
  hydractl bench vit.st hydra.st --compare stock,members,deep
  # a gate for scripts
  hydractl bench vit.st hydra.st --require 'ratio<=2.7'
""",
        prints_table=True,
    ),
    "calibrate": Verb(
        signature="hydractl.api.calibrate:calibrate",
        summary="Choose temperature, threshold and OOD score on validation data",
        usage="MODEL --val SPEC [--ood-val NAME=SPEC|auto]... [-o cal.st] [options]",
        about="Choose a temperature, a threshold and an OOD score of one model on validation data, and write the model "
        "with them. No test data are read: eval measures the result.",
        examples="""
  # a temperature, and a threshold that flags 1 % of the validation data
  hydractl calibrate hydra.st --val val.npz --temperature fit --threshold id:0.01 -o cal.st
  # the score that tells OOD validation data best, and a threshold that flags 95 % of them
  hydractl calibrate hydra.st --val val.npz --ood-val auto --ood-score msp,energy,mi --threshold ood:0.95
""",
        logs_table=True,
    ),
    "predict": Verb(
        signature="hydractl.api.predict:predict",
        summary="Predict inputs, and flag those the model was not made for",
        usage="MODEL [INPUT...] [-o FILE] [options]",
        about="Predict inputs without labels: a line for each with its class, confidence and OOD score, whether it is "
        "flagged as OOD, and its prediction set, by what calibrate chose. One forward pass, in memory that does not "
        "grow; JSON lines into a pipe, a table for a person.",
        examples="""
  # a folder of images into a file
  hydractl predict cal.st new/ -o new.jsonl
  # what it is most likely to be, printed
  hydractl predict cal.st cat.jpg dog.jpg --top 3
  # paths from another command; images that cannot be read are left out and listed
  find new/ -name '*.jpg' | hydractl predict cal.st - --on-bad skip -o new.csv
  # a gate for pipelines: exit code 4 where more than a tenth is flagged
  hydractl predict cal.st new/ -o new.jsonl --require 'ood_share<=0.1'
  # one of four jobs
  hydractl predict cal.st 'new/?part=1/4' -o new.1.jsonl
""",
    ),
    "report": Verb(
        signature="hydractl.api.report:make_report",
        summary="Show, draw and check what eval, bench and study found",
        usage="DOCUMENT... [--html FILE] [options]",
        about="Show, draw and check the documents that eval, bench and study wrote, without running a model: "
        "their table, a page with plots, and what is required of them.",
        examples="""
  # a page with tables and plots
  hydractl report eval.json --html report.html
  # means and standard deviations over seeds
  hydractl report a.json b.json c.json --over seed -o mean.json
  # a gate for scripts: exit code 4 when it fails
  hydractl report eval.json --require 'ood_avg.auroc>=0.85'
""",
        prints_table=True,
    ),
    "study": Verb(
        signature="hydractl.api.study:study",
        summary="Find out whether any of this helps a model",
        usage="MODEL [--train SPEC] --val SPEC [--ood-val SPEC] --test SPEC [--ood NAME=SPEC] [-o DIR] [options]",
        about="Find out whether any of this helps a model: make several fused models of it, choose one and an OOD "
        "score on validation data, and say what it gains and loses on test data against the single model. The same "
        "command goes on after a break.",
        examples="""
  # everything, with a verdict
  hydractl study vit.st --train train/ --val val/ --ood-val textures/ --test test/ --ood svhn:far=svhn.npz -o runs/vit
  # what would be run, and how long it would take
  hydractl study vit.st --val val/ --ood-val textures/ --test test/ --ood svhn:far=svhn.npz --time 1h --dry-run
""",
        prints_table=True,
    ),
}


def engine_of(verb: str) -> str:
    """Return the name of the module that does the work of a verb; a short verb may do without one."""
    name = verb.replace("-", "_")
    return f"hydractl.verbs.{name}"


def function_of(verb: str) -> str:
    """Return the name of a verb's Python function."""
    return VERBS[verb].signature.partition(":")[2]


def verb_called(function: str) -> str | None:
    """Return the verb whose Python function has this name; None if there is none."""
    return next((verb for verb in VERBS if function_of(verb) == function), None)
