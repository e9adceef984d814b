"""The documents of a ``.pt2`` file: every value of a graph has a form of its own, and what has none is refused."""

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

_LARGEST = 1 << 63  # of a whole number: a slice without an end has 2^63 - 1
_LONGEST_EXPRESSION = 4096


class Refused(ValueError):
    """Something in an archive that no export of hydractl holds; its text says what."""


# --- forms of values --------------------------------------------------------------------------------------------------

Form = Callable[[Any], None]
"""Refuses a value that is not of the form."""

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,511}")
_PATH = re.compile(r"[A-Za-z0-9_.-]{0,2048}")
_RESERVED = frozenset(keyword.kwlist)
_EMPTY: tuple[object, ...] = (None, False, "", [], {})
_LEAF: dict[str, object] = {"type": None, "context": None, "children_spec": []}


def _refused(what: str, value: Any) -> Refused:
    """Return the error of a value, shown in short behind what it was to be."""
    return Refused(f"{what} {shown(value)}")


def _flag(value: Any) -> None:
    if type(value) is not bool:
        raise _refused("as a truth value", value)


def _whole(value: Any) -> None:
    if type(value) is not int or abs(value) > _LARGEST:
        raise _refused("as a whole number", value)


def _number(value: Any) -> None:
    # JSON has no infinity: torch writes a word.
    if value in ("Infinity", "-Infinity", "NaN"):
        return
    if type(value) not in (int, float):
        raise _refused("as a number", value)


def _name(value: Any) -> None:
    """Refuse what cannot be a name in Python code, which names of nodes become."""
    if not isinstance(value, str) or _IDENTIFIER.fullmatch(value) is None or value in _RESERVED:
        raise _refused("the name", value)


def _path(value: Any) -> None:
    """Refuse what is no name of a parameter or module: parts between dots, none of them special to Python."""
    if not isinstance(value, str) or _PATH.fullmatch(value) is None:
        raise _refused("the name", value)
    parts = value.split(".")
    if any(part.startswith("__") for part in parts):
        raise _refused("the name", value)


def _matching(pattern: str) -> Form:
    """Accept a text that matches the pattern as a whole."""
    compiled = re.compile(pattern)

    def form(value: Any) -> None:
        if not isinstance(value, str) or compiled.fullmatch(value) is None:
            raise _refused("the text", value)

    return form


def _one_of(*values: Any) -> Form:
    """Accept a value that equals one of these."""

    def form(value: Any) -> None:
        if value not in values:
            raise _refused("the value", value)

    return form


def _nothing(value: Any) -> None:
    if value not in _EMPTY:
        raise _refused("the value", value)


def _perhaps(form: Form) -> Form:
    """Accept null, and what is of the form."""

    def perhaps(value: Any) -> None:
        if value is not None:
            form(value)

    return perhaps


def _list_of(form: Form) -> Form:
    """Accept a list of values that are all of the form."""

    def listed(value: Any) -> None:
        if not isinstance(value, list):
            raise _refused("as a list", value)
        for item in value:
            form(item)

    return listed


def _map_of(key_form: Form, form: Form) -> Form:
    """Accept an object of any fields, whose names are of the first form and whose values are of the second."""

    def mapped(value: Any) -> None:
        if not isinstance(value, dict):
            raise _refused("as an object", value)
        for key, item in value.items():
            key_form(key)
            form(item)

    return mapped


def _record(**forms: Form) -> Form:
    """Accept an object of these fields, of which older versions of torch leave some out; other fields are empty."""

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
    """Accept an object of exactly one of these fields."""

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
"""A guard compares sizes of inputs: ``L['input_ids'].size()[1] == L['attention_mask'].size()[1]``."""


def check_expression(text: Any) -> None:
    """Refuse what is no sum, product or power of sizes, such as ``Mul(Integer(3), Symbol('s0', positive=True))``.

    Raises:
        Refused: sympy would have to evaluate something else.
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
    """Return whether this is a whole number, a symbol, or one of a few functions of sizes."""
    if _is_whole_number(node):
        return True
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return False
    function = node.func.id
    if function == "Symbol":
        return _is_symbol(node)
    if node.keywords:
        return False  # assumptions of symbols alone are known to be harmless
    if function == "Integer":
        return len(node.args) == 1 and _is_whole_number(node.args[0])
    if function == "Pow":
        return _is_low_power(node.args)
    return function in _FUNCTIONS and all(map(_is_size, node.args))


def _is_whole_number(node: ast.expr) -> bool:
    """Return whether this is a whole number that is not absurdly large, with or without a minus."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    if not isinstance(node, ast.Constant) or type(node.value) is not int:
        return False
    return node.value <= _LARGEST


def _is_symbol(node: ast.Call) -> bool:
    """Return whether this is like ``Symbol('s0', positive=True, integer=True)``."""
    for assumption in node.keywords:
        if assumption.arg not in _ASSUMPTIONS:
            return False
        value = assumption.value
        if not isinstance(value, ast.Constant) or type(value.value) is not bool:
            return False
    if len(node.args) != 1:
        return False
    argument = node.args[0]
    if not isinstance(argument, ast.Constant) or not isinstance(argument.value, str):
        return False
    return _SYMBOL.fullmatch(argument.value) is not None


def _is_low_power(arguments: Sequence[ast.expr]) -> bool:
    """Return whether these are a symbol and a low exponent: powers of numbers and of powers have no bound."""
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
    """Return whether this calls the function of this name."""
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
"""Operators of ATen beside its core ones. None of them reads or writes a file, as ``from_file`` and ``save`` do."""
_TEXTS = r"none|tanh|ij|xy|constant|reflect|replicate|circular|floor|trunc|mean|sum|valid|same|[a-zA-Z,. >-]{1,60}"
"""Options of operators: ``gelu`` with ``tanh``, ``meshgrid`` with ``ij``, the letters of ``einsum``."""


def _operator(value: Any) -> None:
    """Refuse what is no operator that only computes: one of Python's, a core one of ATen, or one of ``_OPERATORS``."""
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
    """Return whether torch counts an operator of ATen among the core ones, which only compute."""
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
# Not among them: graphs, custom objects, operators, lists and maps of texts.
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
    """Return the tree of a mapping of these names to tensors, as torch writes it."""
    return {"type": "builtins.dict", "context": json.dumps(names), "children_spec": [_LEAF] * len(names)}


_SIGNATURE_FIELDS = _record(
    inputs=_nothing,
    outputs=_nothing,
    in_spec=_matching(r"(?s).{0,4096}"),
    out_spec=_matching(r"(?s).{0,4096}"),
    forward_arg_names=_list_of(_name),
)


def _signature(value: Any) -> None:
    """Refuse inputs and outputs that are no mappings of names to tensors: torch imports what makes other trees."""
    _SIGNATURE_FIELDS(value)
    input_names = value.get("forward_arg_names") or []
    no_positional = {"type": "builtins.tuple", "context": "null", "children_spec": []}
    by_name = _tree_of_mapping(input_names)
    expected_inputs = {"type": "builtins.tuple", "context": "null", "children_spec": [no_positional, by_name]}
    inputs = parse_json(value.get("in_spec", ""), "the tree of inputs")
    if inputs != [1, expected_inputs]:
        raise _refused("the tree of inputs", value.get("in_spec"))
    outputs = parse_json(value.get("out_spec", ""), "the tree of outputs")
    possible_outputs = [[1, _tree_of_mapping(names)] for names in _possible_output_names()]
    if outputs not in possible_outputs:
        raise _refused("the tree of outputs", value.get("out_spec"))


def _possible_output_names() -> Iterator[list[str]]:
    """Yield the names of the outputs of every graph that is exported, in order."""
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
    """Check what an archive says of its graph.

    Raises:
        Refused: naming the first value that no export of hydractl holds, or a part of a graph that is not there.
    """
    _PROGRAM(document)
    missing = [key for key in _REQUIRED if key not in document]
    if missing:
        raise Refused(f"a graph without {missing[0]}")


_NUMBER_FORMATS = {1: "uint8", 5: "int64", 7: "float32", 8: "float64", 12: "bool"}
"""The number formats of inputs and outputs, by torch's numbers in such a file."""


def shapes_of_program(document: Mapping[str, Any]) -> GraphShapes:
    """Return what a checked graph takes and gives.

    Raises:
        Refused: its inputs and outputs are not those that its signature names.
        LookupError, TypeError: it leaves out what says so.
    """
    module = document["graph_module"]
    graph = module["graph"]
    # Inside of the graph a value has a name of its own; callers use those of the signature, in the same order.
    input_values = []
    for spec in module["signature"]["input_specs"]:
        if "user_input" in spec:
            argument = spec["user_input"]["arg"]
            input_values.append(argument["as_tensor"]["name"])
    output_values = [output["as_tensor"]["name"] for output in graph["outputs"]]
    signature = module["module_call_graph"][0]["signature"]
    input_names = signature["forward_arg_names"]
    inputs = _shapes_of_values(graph, input_names, input_values)
    outputs = _shapes_of_values(graph, _output_names(signature), output_values)
    return GraphShapes(inputs, outputs)


def _output_names(signature: Mapping[str, Any]) -> list[str]:
    """Return the names of the outputs: the context of the tree of a mapping, which is JSON within JSON."""
    _, tree = json.loads(signature["out_spec"])
    names: list[str] = json.loads(tree["context"])
    return names


def _shapes_of_values(graph: Mapping[str, Any], names: Sequence[str], values: Sequence[str]) -> Shapes:
    """Return the shapes of some values of a graph by the names that callers use.

    Args:
        graph: checked.
        names: that callers use.
        values: what each of them is called in the graph.

    Raises:
        Refused: there are more of one than of the other.
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
    """Check the list of weights, or of constants: each raw numbers, in an entry of its own kind.

    Args:
        document: the list.
        folder: where its entries are.
        stem: what their names begin with.
        sizes: the bytes of all entries of the archive.

    Raises:
        Refused: something in the list has another form, or no numbers.
    """
    payload = _record(
        path_name=_matching(rf"{stem}_[0-9]{{1,9}}"),
        is_param=_flag,
        use_pickle=_one_of(False),
        tensor_meta=_TENSOR_META,
    )
    payloads = _record(config=_map_of(_path, payload))
    payloads(document)
    for name, entry in document.get("config", {}).items():
        if "path_name" not in entry or "tensor_meta" not in entry:
            raise Refused(f"{shown(name)} without numbers")
        sizes_of_tensor = entry["tensor_meta"].get("sizes", [])
        numbers = math.prod(size.get("as_int", 1) for size in sizes_of_tensor)
        entry_bytes = sizes.get(f"{folder}/{entry['path_name']}")
        # Of an empty entry, torch would make as many zeros as are asked for.
        if numbers and not entry_bytes:
            raise Refused(f"{shown(name)} without numbers")
