"""The model that runs: one or several members on member-major activations, built from the library's own modules.

Only attention is replaced (:class:`HeadAttention`). A single model is the case of one member, so comparing a fused
model to a single model compares the same code. Paper section 4.2 and equation 6.
"""

from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from hydractl.data.names import read_labels, read_prompts
from hydractl.errors import InputError, UsageError
from hydractl.families import get_family
from hydractl.files.checkpoint import TensorSource
from hydractl.files.description import DEFAULT_PROMPT, Description, bases_of
from hydractl.files.model_records import Calibration
from hydractl.heads.weights import HeadWeights
from hydractl.jsonio import shown
from hydractl.log import Log
from hydractl.metrics.ood_scores import ON_FEATURES
from hydractl.metrics.probabilities import Floats
from hydractl.model.assembly import Assembly
from hydractl.model.attention import HeadAttention
from hydractl.model.chain import Chain, Watch
from hydractl.model.context import RunContext
from hydractl.model.detection import Detector, read_features
from hydractl.model.laplace import attach_posteriors, has_posterior, logits_of_towers
from hydractl.model.prediction import Chosen, Prediction, prediction_of
from hydractl.model.prompted import STAND_INS, PromptedClasses
from hydractl.model.stacking import PerMember


class HydraModel(nn.Module):
    """A dense, pruned or fused classifier.

    A call returns log p ``[B, classes]``, the logarithm of the mean over members of their softmax, so softmax and
    argmax work as on any classifier. Several threads may call one model at once, because no module stores anything of a
    call.

    ``copy.deepcopy``, ``pickle`` and ``torch.save`` (to be loaded with ``weights_only=False``) give a model that shares
    nothing with this one. The copy is not compiled even if this model is.

    Attributes:
        description: what the checkpoint says about itself.
        labels: the class names, or None.
        prompted: the classes of a zero-shot classifier, else None.
        preprocess: a function from a list of raw samples to inputs. Samples are PIL images, arrays or tensors of pixels
            (see :func:`hydractl.families.pixels.image_of`), texts, or pairs of texts.
        lineage: the SHA-256 of the checkpoints from which the model was made, the nearest first; set by ``load``.
        networks: the library's model of each member; see :class:`hydractl.model.assembly.Assembly`.
        attentions: one :class:`HeadAttention` for each site (attention block), in model order.
        chains: one :class:`Chain` for each tower, in the order of the sites.
        detector: the statistics to which the checkpoint's OOD score was fitted; None for a score on logits.

    Args:
        description: what the checkpoint says about itself.
        tensors: the weights.
        device: the device of the weights.
        dtype: the dtype of the weights.
    """

    def __init__(
        self,
        description: Description,
        tensors: TensorSource,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Build the modules with their weights, and add what is stored beside them, such as a calibration."""
        super().__init__()
        # What the checkpoint says about the model.
        self.description = description
        self.family = get_family(description.family)
        self.sites = self.family.sites(description.config)
        self.labels = None if description.labels is None else list(description.labels)
        self.preprocess = self.family.collate(description.preprocess)
        self.lineage: Sequence[str] = bases_of(description.provenance)

        # The modules with their weights.
        assembly = Assembly(description, self.family, self.sites, tensors, torch.device(device), dtype)
        self.networks = nn.ModuleList(assembly.networks)
        self.attentions = assembly.attentions
        self.chains = assembly.chains
        self._compiled_with: tuple[tuple[Any, ...], dict[str, Any]] | None = None

        # What was fitted to the model and is stored with it.
        self._chosen = Chosen.of(description.extra)
        self.calibration = self._chosen.calibration
        if has_posterior(self):
            attach_posteriors(self, tensors)
        self.detector: Detector | None = None

        # Classes given by name; and all that must be forgotten when weights change, also that of zero-shot views of
        # this model, which share its weights.
        self.prompted: PromptedClasses | None = None
        self._kept_of_weights: weakref.WeakSet[PromptedClasses] = weakref.WeakSet()
        if description.labels and self.classes is None:
            self._set_classes(description.labels, description.prompt or [DEFAULT_PROMPT])
        self.to(device)  # moves the buffers, which the library created on the CPU
        self.eval()

    # --- classes by name ----------------------------------------------------------------------------------------------

    def zero_shot(self, labels: str | Sequence[str], prompt: str | Sequence[str] | None = None) -> HydraModel:
        """Return a classifier for classes given by name, if this model compares images with texts.

        It shares the weights of this model but not its settings; see :class:`hydractl.model.prompted.PromptedClasses`.
        What was fitted to the classes of the checkpoint is left out: its calibration, OOD score with threshold,
        and prediction sets.

        Args:
            labels: a list of class names, or a text that ``--labels`` accepts, such as ``imagenet``.
            prompt: one template or several, in which ``{label}`` stands for the class name; the features of several
                templates are averaged. A text may also be anything that ``--prompt`` accepts. None means the templates
                of the checkpoint, or else that of the paper, ``A photo of a {label}.``

        Raises:
            InputError: for a file without names or templates.
            UsageError: if the model has a classifier, there are no labels, or a template has no place for the name.
        """
        class_names = read_labels(labels, "labels") if isinstance(labels, str) else labels
        prompts = [prompt] if isinstance(prompt, str) else prompt
        templates = read_prompts(prompts or [], "prompt")
        if not templates:
            templates_so_far = self.prompted.templates if self.prompted else self.description.prompt
            templates = list(templates_so_far or [DEFAULT_PROMPT])

        # The returned model is a view: it shares all modules with this model, and the list of what is to be forgotten
        # when their weights change, but has settings of its own.
        view = copy.copy(self)
        view._kept_of_weights = self._kept_of_weights
        view.chains = [copy.copy(chain) for chain in self.chains]
        if self._compiled_with is not None:
            args, options = self._compiled_with
            view.compile(*args, **options)
        view._set_classes(class_names, templates)

        # What was fitted to the classes of the checkpoint does not fit these classes.
        view.calibration = None
        view.detector = None
        view._chosen = Chosen()
        return view

    def with_classes(self) -> HydraModel:
        """Return this model; if it has no classes yet, return a view with ten stand-in classes for tests and timing."""
        if self.classes is not None:
            return self
        return self.zero_shot(STAND_INS)

    def _set_classes(self, labels: Sequence[str], templates: Sequence[str]) -> None:
        """Make this model a classifier for classes given by name, whose features are computed when first needed.

        Raises:
            UsageError: if there are no class names or no templates.
        """
        if not labels or not templates:
            raise UsageError("a zero-shot classifier needs class names and a prompt", hint="see --labels and --prompt")
        description = self.description
        prompts = self.family.prompts(description.config, description.preprocess, labels, templates)
        self.prompted = PromptedClasses(
            labels,
            templates,
            prompts,
            self.chain_of_labels,
            self.networks,
            elsewhere=self.chain_of_samples.attentions,
        )
        self._kept_of_weights.add(self.prompted)
        self.labels = list(labels)

    @property
    def block_paths(self) -> list[str]:
        """The module path of each block of each tower, within the first network."""
        paths = []
        for chain in self.chains:
            paths += chain.block_paths
        return paths

    @property
    def chain_of_labels(self) -> Chain:
        """The tower that reads the prompts of the classes."""
        return next(chain for chain in self.chains if chain.of_labels)

    @property
    def chain_of_samples(self) -> Chain:
        """The tower that reads samples."""
        return next(chain for chain in self.chains if not chain.of_labels)

    def label_features(self) -> Tensor:
        """Return what the tower of the labels reads out for every member, ``[M, classes, D]``.

        Raises:
            UsageError: if the model has no classes yet.
        """
        if self.prompted is None:
            raise UsageError(
                f"{self.description.arch} has no classes of its own",
                hint="name them: --labels FILE, or in Python model.zero_shot(labels)",
            )
        return self.prompted.features()

    def read_prompts(self, log: Log, name: str) -> None:
        """Compute the features of a zero-shot classifier's classes now, with progress. Other models do nothing."""
        if self.prompted is not None:
            self.prompted.read(log, f"{name}: prompts")

    def train(self, mode: bool = True) -> HydraModel:
        """Set the mode, as in torch. Features of prompts and stacked weights are dropped and made again."""
        self._forget_what_weights_gave()
        super().train(mode)
        self._stack_weights_if_compiled()
        return self

    def _apply(self, fn: Any, recurse: bool = True) -> HydraModel:
        self._forget_what_weights_gave()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch has no types there
        self._stack_weights_if_compiled()
        return self

    def _forget_what_weights_gave(self) -> None:
        """Drop features of prompts, because the weights may change in ways that cannot be seen."""
        for kept in list(self._kept_of_weights):
            kept.forget()

    def _stack_weights_if_compiled(self) -> None:
        """Stack the weights of a compiled model now; otherwise its graph would stack them in every call."""
        if self._compiled_with is None:
            return
        for module in self.modules():
            if isinstance(module, HeadAttention | PerMember):
                module.stack(RunContext(batched=self.batched))

    @property
    def whole_last_block(self) -> bool:
        """Whether the last block of each tower runs for all tokens, even those from which nothing is read.

        By default it is off, and the last block runs only for the tokens that are read out (in most models the class
        token). This gives the same output except for rounding, with less work. It changes nothing for a model whose
        readout uses all tokens.
        """
        return all(chain.whole_last_block for chain in self.chains)

    @whole_last_block.setter
    def whole_last_block(self, whole: bool) -> None:
        for chain in self.chains:
            chain.whole_last_block = whole
        self._forget_what_weights_gave()  # they were computed with the other setting

    @property
    def side_by_side(self) -> bool | None:
        """Whether members run side by side in the same operations, or one after another, after the common blocks.

        The results are the same. None means whichever is faster.
        """
        return self.chains[0].side_by_side

    @side_by_side.setter
    def side_by_side(self, together: bool | None) -> None:
        for chain in self.chains:
            chain.side_by_side = together

    @property
    def batched(self) -> bool | None:
        """Whether modules that each member has for itself run as one batched product, if members run side by side.

        This concerns attention if members have equal numbers of heads, or nearly equal ones (then padded with zeros).
        It also concerns linear layers and layer norms that are not merged. The results are the same except for
        rounding. None means whichever is faster: one product per member on a CPU, one product for all elsewhere.

        The weights that each member has for itself then become parts of one tensor in memory. Heads that members share
        after the common blocks are stored once more for each member.
        """
        return self.chains[0].batched

    @batched.setter
    def batched(self, together: bool | None) -> None:
        for chain in self.chains:
            chain.batched = together
        self._stack_weights_if_compiled()

    # --- running ------------------------------------------------------------------------------------------------------

    @property
    def members(self) -> int:
        """The number of members."""
        return len(self.networks)

    @property
    def classes(self) -> int | None:
        """The number of classes; None for a model whose classes are given by name, as long as none are given."""
        if self.prompted:
            return len(self.prompted.labels)
        return self.family.classes(self.description.config)

    def tower_outputs(self, inputs: Any, watch: Watch | None = None) -> list[Tensor]:
        """Return what each tower reads out for every member: ``[M, B, ...]``, for class names ``[M, classes, D]``.

        Args:
            inputs: a batch, as ``preprocess`` returns it.
            watch: is called after every block of the tower that reads samples.
        """
        outputs = []
        for chain in self.chains:
            outputs.append(self.label_features() if chain.of_labels else chain(inputs, watch))
        return outputs

    def logits(self, outputs: Sequence[Tensor]) -> Tensor:
        """Compute the logits of each member ``[M, B, classes]`` from what each tower reads out, ``[M, ...]`` each."""
        if len(outputs) == 1:  # the only tower reads out logits
            return outputs[0]
        logits = []
        for member, network in enumerate(self.networks):
            outputs_of_member = [output[member] for output in outputs]
            logits.append(logits_of_towers(self.family, network, outputs_of_member))
        return torch.stack(logits)

    def member_logits(self, inputs: Any) -> Tensor:
        """Return the logits of every member, ``[M, B, classes]``."""
        return self.logits(self.tower_outputs(inputs))

    def __getstate__(self) -> dict[str, Any]:
        # The family comes first, so that unpickling imports its module, which prepares the library, before the library.
        state: dict[str, Any] = {"family": self.family}
        for name, value in vars(self).items():
            if name not in _NOT_COPIED:
                state[name] = value
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]  # torch has no types there
        self.preprocess = self.family.collate(self.description.preprocess)
        self._compiled_with = None
        self._kept_of_weights = weakref.WeakSet()
        if self.prompted:
            self._kept_of_weights.add(self.prompted)

    def forward(self, inputs: Any) -> Tensor:
        """Return log p ``[B, classes]``, the logarithm of the members' mean probabilities, calibrated if possible.

        Args:
            inputs: the result of :attr:`preprocess`.
        """
        pooled = log_mean_softmax(self.member_logits(inputs))
        return pooled if self.calibration is None else calibrated(pooled, self.calibration)

    # --- OOD detection ------------------------------------------------------------------------------------------------

    def predict(self, inputs: Any) -> Prediction:
        """Return the complete answer to a batch from one forward pass, without gradients.

        Probabilities, OOD score, OOD flag and prediction sets follow what ``calibrate`` stored in the checkpoint. If it
        stored no OOD score, ``msp`` is used.

        Args:
            inputs: a batch, as ``preprocess`` returns it.

        Raises:
            UsageError: for samples, or files of samples, in place of a batch.
            InputError: if the score needs features and the file does not hold the statistics of the training data.
            NonFiniteError: for logits that are NaN or infinite.
        """
        if not isinstance(inputs, (Tensor, Mapping)):
            raise UsageError(
                f"predict of a model takes a batch as its preprocess returns it, not {shown(inputs)}",
                hint="model.predict(model.preprocess([image])); hydractl.predict(model, 'x.png') reads files",
            )
        chosen = self._chosen
        fitted_scores: dict[str, Floats] = {}
        with torch.no_grad():
            # Some OOD scores need the features that enter the classifier, others the logits alone.
            if chosen.score in ON_FEATURES:
                detector = self.fitted_detector(chosen.score)
                logits, features = read_features(self, inputs, layers=detector.takes_layers)
                # Scores on features by name: [M, B], averaged over members.
                for score, values in detector.scores(logits, features).items():
                    fitted_scores[score] = values.mean(axis=0)
            else:
                logits = self.member_logits(inputs)
        return prediction_of(logits, fitted_scores, chosen, self.labels)

    def fitted_detector(self, score: str) -> Detector:
        """Return what an OOD score on features was fitted to.

        Raises:
            InputError: if the file does not hold it.
        """
        if self.detector is None:
            message = f"there is nothing that {score} was fitted to"
            raise InputError(message, hint="calibrate --ood-score NAME writes it")
        return self.detector

    def compile(self, *args: Any, **options: Any) -> None:
        """Compile the whole network in place as one graph (``torch.compile``); fail if a part cannot be compiled."""
        vars(self).pop("member_logits", None)  # removes what an earlier call has set, so that the method is seen again
        self._compiled_with = (args, options)
        options = {"fullgraph": True, **options}
        self.member_logits = torch.compile(self.member_logits, *args, **options)  # type: ignore[method-assign]
        self._stack_weights_if_compiled()

    def example_inputs(self, batch: int, seed: int = 0) -> Any:
        """Draw random inputs of the right shape, on the device and in the dtype of the model."""
        parameter = next(self.parameters())
        inputs = self.family.example_inputs(self.description.preprocess, batch, seed)
        return move(inputs, parameter.device, parameter.dtype)

    def head_weights(self, site_index: int, member: int = 0) -> HeadWeights:
        """Return the present attention weights of one member at one site."""
        projections = self.attentions[site_index].projections
        all_members_are_the_same = len(projections) == 1
        return projections[0 if all_members_are_the_same else member].weights()

    def stock_tensors(self) -> dict[str, Tensor]:
        """Return the weights of a model with one member under the library's names, without the removed heads."""
        if self.members != 1:
            hint = "give the file or the Model that it was loaded from; train members before they are fused"
            raise InputError("a loaded module of several members has no one set of weights", hint=hint)

        # All tensors but those of attention are as in the library. Attention is written back block by block.
        tensors = {}
        for name, tensor in plain_state(self.networks[0]).items():
            if self.family.part(name) != "attention":
                tensors[name] = tensor
        for index, site in enumerate(self.sites):
            self.family.write(tensors, site, self.head_weights(index))
        return tensors


_NOT_COPIED = ("preprocess", "member_logits", "_compiled_with", "_kept_of_weights")
"""Attributes that a copy creates again: functions, and what the model shares with other models."""


def log_mean_softmax(member_logits: Tensor) -> Tensor:
    """Return the log of the mean over members of their softmax: ``[M, B, C]`` to ``[B, C]``, in at least float32."""
    logits = member_logits if member_logits.dtype == torch.float64 else member_logits.float()
    log_probs = logits.log_softmax(-1)  # [M, B, C]
    members = member_logits.shape[0]
    return torch.logsumexp(log_probs, dim=0) - math.log(members)  # log(sum of probabilities) - log(M)


def calibrated(log_probs: Tensor, calibration: Calibration) -> Tensor:
    """Calibrate the log p ``[B, C]`` of a model: ``log_softmax(log p * scale + bias)``."""
    scale = log_probs.new_tensor(list(calibration.scales))
    bias = log_probs.new_tensor(list(calibration.bias or [0.0]))
    return (log_probs * scale + bias).log_softmax(-1)


def move(inputs: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """Move inputs to the device of a model. Floating point inputs also get its dtype.

    What goes to a GPU is copied to page-locked memory first: from there it travels while the GPU computes something
    else. From other memory this process would wait until the GPU has finished.
    """
    if isinstance(inputs, Tensor):
        if device.type == "cuda" and inputs.device.type == "cpu":
            inputs = inputs.pin_memory().to(device, non_blocking=True)
        new_dtype = dtype if inputs.is_floating_point() else None
        return inputs.to(device, new_dtype, non_blocking=True)
    return {key: move(value, device, dtype) for key, value in inputs.items()}


def plain_state(network: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a network, without gradients, by the library's names.

    Of a parametrised weight (e.g. by weight norm) this is the value that torch computes, not the parts that it stores.
    """
    state = {}
    for name, tensor in network.state_dict().items():
        if ".parametrizations." not in name:
            state[name] = tensor.detach()
    # A parametrisation (e.g. weight norm) stores its parts; the computed value replaces them.
    for path, module in network.named_modules():
        if parametrize.is_parametrized(module):
            for name in module.parametrizations:
                state[f"{path}.{name}"] = getattr(module, name).detach()
    return state
