"""Checks the JSON documents of a ``.pt2`` file: every value of a graph must have an expected form.

A form is a function that returns nothing if a value has the form, and raises :class:`Refused` otherwise.
"""

from __future__ import annotations

import ast
import json
import keyword
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from hydractl.exports.answer import CONFORMAL_SET, IS_OOD, MEMBER_LOGITS, OOD_SCORE, PROBABILITIES
from hydractl.exports.shapes import GraphShapes, Shapes, Size, TensorShape
from hydractl.jsonio import parse_json, shown

_LARGEST = 1 << 63  # the largest whole number; a slice without an end has 2^63 - 1
_LONGEST_EXPRESSION = 4096


class Refused(ValueError):
    """An archive has something that hydractl does not export; the message names it."""


# --- forms of values --------------------------------------------------------------------------------------------------

Form = Callable[[Any], None]
"""A function that raises :class:`Refused` for a value that does not have the form."""

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,511}")
_PATH = re.compile(r"[A-Za-z0-9_.-]{0,2048}")
_RESERVED = frozenset(keyword.kwlist)
_EMPTY: tuple[object, ...] = (None, False, "", [], {})
_LEAF: dict[str, object] = {"type": None, "context": None, "children_spec": []}


def _refused(what: str, value: Any) -> Refused:
    """Return the error for a value: what it should be, and the value itself, shortened."""
    return Refused(f"{what} {shown(value)}")


def _flag(value: Any) -> None:
    if type(value) is not bool:
        raise _refused("as a truth value", value)


def _whole(value: Any) -> None:
    if type(value) is not int or abs(value) > _LARGEST:
        raise _refused("as a whole number", value)


def _number(value: Any) -> None:
    # JSON has no infinity, so torch writes these words.
    if value in ("Infinity", "-Infinity", "NaN"):
        return
    if type(value) not in (int, float):
        raise _refused("as a number", value)


def _name(value: Any) -> None:
    """Accept a Python identifier that is not a keyword, because torch writes the names of nodes into Python code."""
    if not isinstance(value, str) or _IDENTIFIER.fullmatch(value) is None or value in _RESERVED:
        raise _refused("the name", value)


def _path(value: Any) -> None:
    """Accept the dotted name of a parameter or module; no part of it may start with two underscores."""
    if not isinstance(value, str) or _PATH.fullmatch(value) is None:
        raise _refused("the name", value)
    parts = value.split(".")
    if any(part.startswith("__") for part in parts):
        raise _refused("the name", value)


def _matching(pattern: str) -> Form:
    """Return a form for texts that match the whole pattern."""
    compiled = re.compile(pattern)

    def form(value: Any) -> None:
        if not isinstance(value, str) or compiled.fullmatch(value) is None:
            raise _refused("the text", value)

    return form


def _one_of(*values: Any) -> Form:
    """Return a form for values that equal one of these."""

    def form(value: Any) -> None:
        if value not in values:
            raise _refused("the value", value)

    return form


def _nothing(value: Any) -> None:
    if value not in _EMPTY:
        raise _refused("the value", value)


def _perhaps(form: Form) -> Form:
    """Return a form that also accepts null."""

    def perhaps(value: Any) -> None:
        if value is not None:
            form(value)

    return perhaps


def _list_of(form: Form) -> Form:
    """Return a form for lists in which every item has the given form."""

    def listed(value: Any) -> None:
        if not isinstance(value, list):
            raise _refused("as a list", value)
        for item in value:
            form(item)

    return listed


def _map_of(key_form: Form, form: Form) -> Form:
    """Return a form for objects with any fields, whose names have the first form and whose values the second."""

    def mapped(value: Any) -> None:
        if not isinstance(value, dict):
            raise _refused("as an object", value)
        for key, item in value.items():
            key_form(key)
            form(item)

    return mapped


def _record(**forms: Form) -> Form:
    """Return a form for objects with these fields, each with its own form.

    Fields may be missing, because older versions of torch leave some out. Other fields may exist if they are empty.
    """

    def record(value: Any) -> None:
        if not isinstance(value, dict):
            raise _refused("as an object", value)
        for key, item in value.items():
            if key in forms:
                forms[key](item)
            elif item not in _EMPTY:
                raise Refused(f"the field {shown(key)} with {shown(item)}")

    return record


def _either(**forms: Form) -> Form:
    """Return a form for objects with exactly one of these fields."""

    def either(value: Any) -> None:
        if not isinstance(value, dict) or len(value) != 1:
            raise _refused("as a choice", value)
        ((key, item),) = value.items()
        if key not in forms:
            raise Refused(f"the field {shown(key)} with {shown(item)}")
        forms[key](item)

    return either


# --- what may be evaluated --------------------------------------------------------------------------------------------

_CHARACTERS = re.compile(r"[A-Za-z0-9_(),= '-]+")
_SYMBOL = re.compile(r"[a-z]{1,8}[0-9]{1,9}")
_ASSUMPTIONS = ("positive", "integer", "nonnegative", "nonzero", "real", "finite")
_FUNCTIONS = frozenset({"Add", "Mul", "Min", "Max", "FloorDiv", "CeilDiv", "CleanDiv", "Mod", "PythonMod"})
_HIGHEST_POWER = 8
_TERM = r"(L\['[A-Za-z_][A-Za-z0-9_]*'\]\.size\(\)\[[0-9]{1,2}\]|[0-9]{1,18})"
_GUARD = rf"{_TERM} (==|!=|<=|>=|<|>) {_TERM}"
"""The pattern of a guard, which compares sizes: ``L['input_ids'].size()[1] == L['attention_mask'].size()[1]``."""


def check_expression(text: Any) -> None:
    """Accept a simple expression of sizes, e.g. ``Mul(Integer(3), Symbol('s0', positive=True))``.

    torch evaluates such expressions with sympy, which would run any Python code in them.

    Raises:
        Refused: if the expression has anything but whole numbers, symbols and a few functions such as ``Add``.
    """
    if not isinstance(text, str) or len(text) > _LONGEST_EXPRESSION:
        raise _refused("the expression", text)
    if _CHARACTERS.fullmatch(text) is None:
        raise _refused("the expression", text)
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise _refused("the expression", text) from error
    if not _is_size(tree):
        raise _refused("the expression", text)


def _is_size(node: ast.expr) -> bool:
    """Return whether an expression is a whole number, a symbol, or one of a few functions of such expressions."""
    if _is_whole_number(node):
        return True
    # Everything else is a call of a function by its plain name.
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return False
    function = node.func.id
    if function == "Symbol":
        return _is_symbol(node)
    # Only symbols may have keyword arguments, their assumptions; others are not known to be harmless.
    if node.keywords:
        return False
    if function == "Integer":
        return len(node.args) == 1 and _is_whole_number(node.args[0])
    if function == "Pow":
        return _is_low_power(node.args)
    return function in _FUNCTIONS and all(map(_is_size, node.args))


def _is_whole_number(node: ast.expr) -> bool:
    """Return whether an expression is a whole number of at most 2^63, with or without a minus sign."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    if not isinstance(node, ast.Constant) or type(node.value) is not int:
        return False
    return node.value <= _LARGEST


def _is_symbol(node: ast.Call) -> bool:
    """Return whether a call has the form ``Symbol('s0', positive=True, integer=True)``.

    The function itself is already known to be ``Symbol``.
    """
    # Keyword arguments: known assumptions, each True or False.
    for assumption in node.keywords:
        if assumption.arg not in _ASSUMPTIONS:
            return False
        value = assumption.value
        if not isinstance(value, ast.Constant) or type(value.value) is not bool:
            return False
    # One positional argument: a name such as s0.
    if len(node.args) != 1:
        return False
    argument = node.args[0]
    if not isinstance(argument, ast.Constant) or not isinstance(argument.value, str):
        return False
    return _SYMBOL.fullmatch(argument.value) is not None


def _is_low_power(arguments: Sequence[ast.expr]) -> bool:
    """Return whether the arguments of ``Pow`` are a symbol and ``Integer(N)`` with N from 0 to 8.

    Powers of numbers, and powers of powers, could become too large to compute.
    """
    if len(arguments) != 2:
        return False
    base, exponent = arguments
    if not _is_call_of(base, "Symbol") or not _is_size(base):
        return False
    if not _is_call_of(exponent, "Integer") or not _is_size(exponent):
        return False
    assert isinstance(exponent, ast.Call)
    power = exponent.args[0]
    return isinstance(power, ast.Constant) and power.value in range(_HIGHEST_POWER + 1)


def _is_call_of(node: ast.expr, function: str) -> bool:
    """Return whether an expression is a call of the function with this name."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return False
    return node.func.id == function


# --- operators --------------------------------------------------------------------------------------------------------

_ATEN = re.compile(
    r"torch\.ops\.aten\.(?P<name>[A-Za-z_][A-Za-z0-9_]{0,99})\.(?P<overload>[A-Za-z_][A-Za-z0-9_]{0,99})"
)
_PYTHON = re.compile(
    r"_operator\.(add|sub|mul|floordiv|mod|neg|truediv|eq|ne|lt|le|gt|ge|getitem)|torch\.sym_(max|min|not|float|sum)"
)
_OPERATORS = frozenset(
    """
    __and__ __or__ __xor__ _assert_tensor_metadata _upsample_bicubic2d_aa _upsample_bilinear2d_aa
    adaptive_avg_pool1d adaptive_avg_pool2d add_ arange avg_pool1d avg_pool2d baddbmm batch_norm
    broadcast_tensors broadcast_to ceil_ celu chunk clamp clamp_max clamp_min clip concat contiguous conv1d
    conv2d copy_ cross_entropy_loss cumprod deg2rad detach detach_ diff div_ dot dropout einsum elu expand_as
    feature_dropout fill_ flatten flip floor_divide frobenius_norm full_like group_norm hardsigmoid hardswish
    hardtanh hstack index_add index_copy index_fill instance_norm isfinite isinf isnan item l1_loss layer_norm
    leaky_relu lerp lift_fresh_copy linalg_norm linalg_vector_norm linear linspace log_sigmoid log_softmax
    logical_and_ logsumexp mH mT masked_fill masked_fill_ masked_select matmul matrix_H max max_pool2d meshgrid
    min mish movedim mul_ multi_head_attention narrow new_empty new_full new_ones new_zeros norm numpy_T one_hot
    ones ones_like outer pad pairwise_distance pixel_shuffle pixel_unshuffle prelu promote_types reciprocal_
    relu6 relu_ repeat_interleave reshape reshape_as rms_norm roll rrelu rsub scaled_dot_product_attention selu
    silu silu_ softmax softplus sort split split_with_sizes square squeeze stack std sub_ sum swapaxes swapdims
    sym_numel sym_size sym_storage_offset sym_stride t take_along_dim tensor_split tile to topk transpose tril
    tril_ triu triu_ true_divide type_as unbind unflatten unfold unsafe_chunk unsafe_split unsqueeze_
    upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest2d var_mean view_as vstack where
    zeros zeros_like
    """.split()  # noqa: SIM905 - one a line would be a page
)
"""Allowed operators of ATen that are not core ones. None of them reads or writes a file (``from_file``, ``save``)."""
_TEXTS = r"none|tanh|ij|xy|constant|reflect|replicate|circular|floor|trunc|mean|sum|valid|same|[a-zA-Z,. >-]{1,60}"
"""The allowed texts as arguments of operators: ``gelu`` with ``tanh``, ``meshgrid`` with ``ij``, ``einsum``."""


def _operator(value: Any) -> None:
    """Accept an operator that only computes: one of Python's, a core operator of ATen, or one of ``_OPERATORS``."""
    if not isinstance(value, str):
        raise _refused("the operator", value)
    if _PYTHON.fullmatch(value) is not None:
        return
    match = _ATEN.fullmatch(value)
    if match is None:
        raise _refused("the operator", value)
    name = match["name"]
    if name not in _OPERATORS and not _is_core(name, match["overload"]):
        raise _refused("the operator", value)


def _is_core(name: str, overload: str) -> bool:
    """Return whether torch marks an operator of ATen as a core operator; these only compute."""
    import torch

    overloads = getattr(torch.ops.aten, name, None)
    operator = getattr(overloads, overload, None)
    if not isinstance(operator, torch._ops.OpOverload):
        return False
    return torch.Tag.core in operator.tags


# --- the document of the model ----------------------------------------------------------------------------------------

_DEVICE = _record(type=_one_of("cpu"), index=_perhaps(_whole))
_HINT_OF_SIZE = _either(as_int=_whole, as_bool=_flag, as_float=_number)
_EXPRESSION = _record(expr_str=check_expression, hint=_perhaps(_HINT_OF_SIZE))
_SIZE = _either(as_expr=_EXPRESSION, as_int=_whole)
_SIZES = _list_of(_SIZE)
_TENSOR_META = _record(
    dtype=_whole,
    sizes=_SIZES,
    requires_grad=_flag,
    device=_DEVICE,
    strides=_SIZES,
    storage_offset=_SIZE,
    layout=_whole,
)
_OF_TENSOR = _record(name=_name)
_SYM_INT = _either(as_name=_name, as_int=_whole)
_SYM_FLOAT = _either(as_name=_name, as_float=_number)
_SYM_BOOL = _either(as_name=_name, as_bool=_flag)
_OPTIONAL_TENSOR = _either(as_tensor=_OF_TENSOR, as_none=_flag)
# torch also knows graphs, custom objects, operators, lists and maps of texts as arguments; they are not allowed.
_ARGUMENT = _either(
    as_none=_flag,
    as_tensor=_OF_TENSOR,
    as_tensors=_list_of(_OF_TENSOR),
    as_int=_whole,
    as_ints=_list_of(_whole),
    as_float=_number,
    as_floats=_list_of(_number),
    as_string=_matching(_TEXTS),
    as_sym_int=_SYM_INT,
    as_sym_ints=_list_of(_SYM_INT),
    as_sym_float=_SYM_FLOAT,
    as_sym_floats=_list_of(_SYM_FLOAT),
    as_sym_bool=_SYM_BOOL,
    as_sym_bools=_list_of(_SYM_BOOL),
    as_scalar_type=_whole,
    as_memory_format=_whole,
    as_layout=_whole,
    as_device=_DEVICE,
    as_bool=_flag,
    as_bools=_list_of(_flag),
    as_optional_tensor=_OPTIONAL_TENSOR,
    as_optional_tensors=_list_of(_OPTIONAL_TENSOR),
    as_int_lists=_list_of(_list_of(_whole)),
)
_NODE = _record(
    target=_operator,
    inputs=_list_of(_record(name=_name, arg=_ARGUMENT, kind=_perhaps(_whole))),
    outputs=_list_of(_ARGUMENT),
    metadata=_nothing,
    is_hop_single_tensor_return=_nothing,
    name=_perhaps(_name),
)
_GRAPH = _record(
    inputs=_list_of(_either(as_tensor=_OF_TENSOR)),
    outputs=_list_of(_either(as_tensor=_OF_TENSOR)),
    nodes=_list_of(_NODE),
    tensor_values=_map_of(_name, _TENSOR_META),
    sym_int_values=_map_of(_name, _SIZE),
    sym_bool_values=_map_of(_name, _either(as_expr=_EXPRESSION, as_bool=_flag)),
    sym_float_values=_map_of(_name, _either(as_expr=_EXPRESSION, as_float=_number)),
    is_single_tensor_return=_flag,
)
_INPUT = _either(
    user_input=_record(arg=_either(as_tensor=_OF_TENSOR)),
    parameter=_record(arg=_OF_TENSOR, parameter_name=_path),
    buffer=_record(arg=_OF_TENSOR, buffer_name=_path, persistent=_flag),
    tensor_constant=_record(arg=_OF_TENSOR, tensor_constant_name=_path),
)
_OUTPUT = _either(user_output=_record(arg=_either(as_tensor=_OF_TENSOR)))


def _tree_of_mapping(names: Sequence[str]) -> dict[str, object]:
    """Return torch's JSON description of a dict from these names to tensors."""
    return {"type": "builtins.dict", "context": json.dumps(names), "children_spec": [_LEAF] * len(names)}


_SIGNATURE_FIELDS = _record(
    inputs=_nothing,
    outputs=_nothing,
    in_spec=_matching(r"(?s).{0,4096}"),
    out_spec=_matching(r"(?s).{0,4096}"),
    forward_arg_names=_list_of(_name),
)


def _signature(value: Any) -> None:
    """Accept a signature whose inputs and outputs are dicts from names to tensors.

    For any other structure ("tree") torch would import the module of its class.
    """
    _SIGNATURE_FIELDS(value)

    # Inputs: an empty tuple of positional arguments, and a dict of keyword arguments. torch stores this structure as a
    # JSON text, [1, tree], where 1 is the version of the format. A tree names the class of a container, and its
    # contents.
    input_names = value.get("forward_arg_names") or []
    no_positional = {"type": "builtins.tuple", "context": "null", "children_spec": []}
    keyword_inputs = _tree_of_mapping(input_names)
    expected_inputs = {"type": "builtins.tuple", "context": "null", "children_spec": [no_positional, keyword_inputs]}
    inputs = parse_json(value.get("in_spec", ""), "the tree of inputs")
    if inputs != [1, expected_inputs]:
        raise _refused("the tree of inputs", value.get("in_spec"))

    # Outputs: a dict with one of the possible lists of names.
    outputs = parse_json(value.get("out_spec", ""), "the tree of outputs")
    possible_outputs = [[1, _tree_of_mapping(names)] for names in _possible_output_names()]
    if outputs not in possible_outputs:
        raise _refused("the tree of outputs", value.get("out_spec"))


def _possible_output_names() -> Iterator[list[str]]:
    """Yield every list of output names that an exported graph can have."""
    possible_scores: list[list[str]] = [[], [OOD_SCORE], [OOD_SCORE, IS_OOD]]
    possible_sets: list[list[str]] = [[], [CONFORMAL_SET]]
    for score in possible_scores:
        for conformal_set in possible_sets:
            yield [PROBABILITIES, *score, *conformal_set, MEMBER_LOGITS]


_PROGRAM = _record(
    graph_module=_record(
        graph=_GRAPH,
        signature=_record(input_specs=_list_of(_INPUT), output_specs=_list_of(_OUTPUT)),
        module_call_graph=_list_of(_record(fqn=_path, signature=_perhaps(_signature))),
        metadata=_nothing,
        treespec_namedtuple_fields=_nothing,
    ),
    opset_version=_map_of(_one_of("aten"), _whole),
    range_constraints=_map_of(_matching(_SYMBOL.pattern), _record(min_val=_perhaps(_whole), max_val=_perhaps(_whole))),
    schema_version=_record(major=_whole, minor=_whole),
    verifiers=_list_of(_one_of("TRAINING")),
    torch_version=_matching(r"[0-9A-Za-z.+]{1,60}"),
    guards_code=_list_of(_matching(_GUARD)),
)
_REQUIRED: Collection[str] = ("graph_module", "opset_version", "range_constraints", "schema_version")


def check_program(document: Any) -> None:
    """Check the document of the graph in an archive.

    Raises:
        Refused: with the first value that hydractl does not export, or the first missing part.
    """
    _PROGRAM(document)
    missing_keys = [key for key in _REQUIRED if key not in document]
    if missing_keys:
        raise Refused(f"a graph without {missing_keys[0]}")


_NUMBER_FORMATS = {1: "uint8", 5: "int64", 7: "float32", 8: "float64", 12: "bool"}
"""The number formats of inputs and outputs, by the codes that torch uses for them in a file."""


def shapes_of_program(document: Mapping[str, Any]) -> GraphShapes:
    """Return the inputs and outputs of a graph.

    Args:
        document: a document that :func:`check_program` has checked.

    Raises:
        Refused: if there are more or fewer inputs or outputs than names for them.
        LookupError, TypeError: if a needed part of the document is missing.
    """
    module = document["graph_module"]
    graph = module["graph"]

    # The names of inputs and outputs inside the graph. Parameters and buffers are also inputs, but not of the user.
    inner_input_names = []
    for spec in module["signature"]["input_specs"]:
        if "user_input" in spec:
            argument = spec["user_input"]["arg"]
            inner_input_names.append(argument["as_tensor"]["name"])
    inner_output_names = [output["as_tensor"]["name"] for output in graph["outputs"]]

    # The names that callers use, in the same order.
    signature = module["module_call_graph"][0]["signature"]
    input_names = signature["forward_arg_names"]
    inputs = _shapes_of_values(graph, input_names, inner_input_names)
    outputs = _shapes_of_values(graph, _output_names(signature), inner_output_names)
    return GraphShapes(inputs, outputs)


def _output_names(signature: Mapping[str, Any]) -> list[str]:
    """Return the names of the outputs from a signature, where they are JSON inside JSON."""
    _, tree = json.loads(signature["out_spec"])
    names: list[str] = json.loads(tree["context"])
    return names


def _shapes_of_values(graph: Mapping[str, Any], names: Sequence[str], values: Sequence[str]) -> Shapes:
    """Return the dtypes and shapes of some tensors of a graph, by the names that callers use.

    Dimensions without a fixed size get the size ``any``.

    Args:
        graph: the checked document of the graph.
        names: the names that callers use.
        values: the names of the same tensors inside the graph, in the same order.

    Raises:
        Refused: if the two lists have different lengths.
    """
    if len(names) != len(values):
        raise Refused(f"{len(values)} tensors for {', '.join(names)}")
    shapes = {}
    for name, value in zip(names, values, strict=True):
        tensor = graph["tensor_values"][value]
        sizes: list[Size] = []
        for size in tensor["sizes"]:
            sizes.append(size.get("as_int", "any"))
        dtype = _NUMBER_FORMATS.get(tensor["dtype"], "unknown")
        shapes[name] = TensorShape(dtype, tuple(sizes))
    return shapes


def check_payload(document: Any, folder: str, stem: str, sizes: Mapping[str, int]) -> None:
    """Check the list of weights, or of constants, in an archive: each must be raw numbers in an entry of the archive.

    Args:
        document: the list: for each tensor its entry and its shape.
        folder: the folder of the entries in the archive, e.g. ``data/weights``.
        stem: the beginning of the entries' names, e.g. ``weight`` for ``weight_0``.
        sizes: the size in bytes of every entry in the archive, by its full name.

    Raises:
        Refused: if a value in the list has another form, or a tensor has no numbers.
    """
    # First check the form of the list, e.g. {"config": {"fc.bias": {"path_name": "weight_0", "is_param": true,
    # "use_pickle": false, "tensor_meta": {...}}}}. A form is a function that refuses a value of another form; _record
    # makes one for objects with these fields, _map_of one for objects with any names. Pickled tensors are not allowed.
    payload = _record(
        path_name=_matching(rf"{stem}_[0-9]{{1,9}}"),
        is_param=_flag,
        use_pickle=_one_of(False),
        tensor_meta=_TENSOR_META,
    )
    payloads = _record(config=_map_of(_path, payload))
    payloads(document)

    # Then every tensor with at least one number needs an entry that is not empty: for an empty one torch would allocate
    # as many zeros as the shape says. Fields may be missing in a record, so each is read with a default: no shape means
    # a single number, and a size without "as_int" counts as 1.
    for name, entry in document.get("config", {}).items():
        if "path_name" not in entry or "tensor_meta" not in entry:
            raise Refused(f"{shown(name)} without numbers")
        shape = entry["tensor_meta"].get("sizes", [])
        numbers = math.prod(size.get("as_int", 1) for size in shape)
        entry_bytes = sizes.get(f"{folder}/{entry['path_name']}")
        if numbers and not entry_bytes:
            raise Refused(f"{shown(name)} without numbers")
