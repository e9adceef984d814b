"""The verbs as the command line shows them: summary, module and examples of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

INFO = "--info"
"""Not a verb, but a command with arguments of its own."""


class Request(NamedTuple):
    """A parsed command line: a verb (or ``--info``) and the values by option; None is "not given"."""

    verb: str
    given: Mapping[str, Any]


class Verb(NamedTuple):
    """One verb.

    Attributes:
        module: has ``run(settings, log) -> Outcome``; imported only when the verb runs.
        summary: one line for ``hydractl --help``.
        usage: what follows the verb in the usage line.
        about: what it does and gives, for its own help.
        examples: a comment and a command each, as they are printed.
        prints_table: the answer is the table itself, not a file, so it is printed on any kind of output.
    """

    module: str
    summary: str
    usage: str
    about: str
    examples: str
    prints_table: bool = False


VERBS: dict[str, Verb] = {
    "score": Verb(
        module="hydractl.verbs.score",
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
        module="hydractl.verbs.extract_circuit",
        summary="Rank heads by greedy search on validation data",
        usage="MODEL --data SPEC [--ood SPEC] [-o circuit.json] [options]",
        about=(
            "Remove heads one by one, each time the one whose removal leaves the best score on validation data. "
            "The resulting order also serves every smaller budget."
        ),
        examples="""
  # three circuits for three members, 8 heads a site
  hydractl extract-circuit vit.st --data val.npz --ood ood.npz --objective acc,ood,avg --keep 8
""",
    ),
    "prune": Verb(
        module="hydractl.verbs.prune",
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
        module="hydractl.verbs.finetune",
        summary="Fine-tune a pruned model",
        usage="MODEL... --data SPEC [--val SPEC] [-o a.st] [options]",
        about="Fine-tune a pruned model, without its removed heads; the best epoch on --val is kept. Several models "
        "are trained separately; -o then names their folder, as in out/.",
        examples="""
  # three epochs
  hydractl finetune a.st --data train.npz --val val.npz -o a.tuned.st
  # the last five blocks by SGD
  hydractl finetune a.st --data train.npz --optimizer sgd --lr 0.01 --train-last 5 --steps 10000
  # a recipe of the paper; the best of four learning rates is kept
  hydractl finetune a.st --data train/ --val val/ --recipe imagenet1k
  # three members of a deep ensemble, each on a GPU: deep.0.st, deep.1.st, deep.2.st
  hydractl finetune vit.st --data train/ --val val/ --members 3 --devices 0,1,2 -o deep.st
  # resume after a kill
  hydractl finetune a.st --data train/ --val val/ --recipe imagenet1k --resume
""",
    ),
    "laplace": Verb(
        module="hydractl.verbs.laplace",
        summary="Give a model a posterior of its last layer",
        usage="MODEL --data SPEC [--val SPEC] [-o a.laplace.st] [options]",
        about="Fit a Laplace approximation over the classifier, or over the projections of a CLIP (BayesVLM), and "
        "write the model with it: its logits then are what the posterior makes of them. It comes last, behind pruning, "
        "training and fusing.",
        examples="""
  # the prior of the highest marginal likelihood on the training data
  hydractl laplace vit.st --data train/
  # of every member of a fused model, the prior of the lowest NLL on validation data
  hydractl laplace hydra.st --data train/ --val val/ -o hydra.laplace.st
  # BayesVLM: pairs of images and captions
  hydractl laplace clip.st --data captions:pairs.csv --pseudo-data 10 -o clip.laplace.st
""",
    ),
    "fuse": Verb(
        module="hydractl.verbs.fuse",
        summary="Fuse pruned members into one model",
        usage="MODEL... [-o hydra.st] [options]",
        about="Fuse pruned members into one model file that gives their averaged prediction in one pass.",
        examples="""
  # three members
  hydractl fuse a.st b.st c.st -o hydra.st
  # exactly the members, nothing averaged
  hydractl fuse a.st b.st c.st --merge none -o hydra.st
  # what averaging does to accuracy
  hydractl fuse a.st b.st c.st --data val.npz --limit 1000 -o hydra.st
  # a file that runs without hydractl: hydra.onnx
  hydractl fuse hydra.st --export onnx
""",
    ),
    "eval": Verb(
        module="hydractl.verbs.eval",
        summary="Measure accuracy, calibration and OOD detection",
        usage="[NAME=]MODEL... --data SPEC [--ood NAME=SPEC]... [-o eval.json] [options]",
        about="Measure accuracy, calibration, OOD detection and diversity: one row per MODEL.",
        examples="""
  # a single model against a fused one
  hydractl eval single=vit.st hydra.st --data test.npz --ood svhn:far=svhn.npz
  # members run sequentially (of independent trainings: a deep ensemble)
  hydractl eval ensemble=a.st+b.st+c.st --data test.npz
  # a gate for scripts: exit code 4 when it fails
  hydractl eval hydra.st --data test.npz --ood svhn=svhn.npz --require 'ood_avg.auroc>=0.85'
  # means and standard deviations over seeds
  hydractl eval --from a.json --from b.json --from c.json --over seed -o mean.json
""",
        prints_table=True,
    ),
    "bench": Verb(
        module="hydractl.verbs.bench",
        summary="Measure latency, memory and mult-adds",
        usage="([NAME=]MODEL... | --from bench.json) [-o bench.json] [options]",
        about="Measure latency, throughput, memory and mult-adds; ratios are to the first MODEL, in paired rounds.",
        examples="""
  # the fused model against the single one
  hydractl bench vit.st hydra.st --batch-size 1,8
  # and both against baselines
  hydractl bench vit.st hydra.st --compare stock,members,deep --plot bench.png
  # the same plot again, in another format
  hydractl bench --from vit.bench.json --plot bench.svg
  # a gate for scripts
  hydractl bench vit.st hydra.st --require 'ratio<=2.7'
""",
        prints_table=True,
    ),
    "study": Verb(
        module="hydractl.verbs.study",
        summary="Find out whether any of this helps a model",
        usage="MODEL [--data TRAIN] --val SPEC --ood-val SPEC --test SPEC --ood NAME=SPEC [-o DIR] [options]",
        about="Find out whether any of this helps a model: make several fused models of it, choose one and an OOD "
        "score on validation data, and say what it gains and loses on test data against the single model. The same "
        "command goes on after a break.",
        examples="""
  # everything, with a verdict
  hydractl study vit.st --data train/ --val val/ --ood-val textures/ --test test/ --ood svhn:far=svhn.npz -o runs/vit
  # what would be run, and how long it would take
  hydractl study vit.st --val val/ --ood-val textures/ --test test/ --ood svhn:far=svhn.npz --budget 1h --dry-run
""",
        prints_table=True,
    ),
    "push": Verb(
        module="hydractl.verbs.push",
        summary="Upload a model to the Hugging Face Hub",
        usage="FILE|FOLDER hf:ORG/NAME [options]",
        about="Upload a checkpoint or a published folder, and its model card, to a repository of the Hugging Face Hub, "
        "in one commit. Every verb opens it from there: hf:ORG/NAME.",
        examples="""
  # with the card of an eval, its results and a licence
  hydractl push hydra.st hf:me/hydra-vit --card hydra.md --license apache-2.0
  # what would be uploaded
  hydractl push hydra.st hf:me/hydra-vit --dry-run
  # use it anywhere; @REVISION pins it
  hydractl eval hf:me/hydra-vit --data test.npz
""",
        prints_table=True,
    ),
}

APP_ABOUT = "Prune a transformer into members, fuse them into one ensemble model, and measure the result."

APP_EXAMPLES = """
  # MODEL and data from ./hydra.yaml
  hydractl prune --method taylor --keep 8
  # fuse members
  hydractl fuse a.st b.st c.st -o hydra.st
  # the contents of a file
  hydractl --info hydra.st
"""

INFO_ABOUT = (
    "Describe files that hydractl writes, from their headers, with a map of the heads; of several files of one model "
    "also how far their heads overlap."
)

INFO_EXAMPLES = """
  # a fused model
  hydractl --info hydra.st
  # the overlap of three members
  hydractl --info a.mask.json b.mask.json c.mask.json
  # for a script
  hydractl --info hydra.st --json
"""
