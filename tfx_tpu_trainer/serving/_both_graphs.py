"""Compares the answers of the metagraphs for CPU and TPU hosts on a CPU, padded batches included."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from google.protobuf import message
from tensorflow.core.protobuf import meta_graph_pb2

from tfx_tpu_trainer._support.messages import first_reason
from tfx_tpu_trainer.estimator.extending import (
    HOST_TAGS,
    TPU_TAGS,
    all_nodes,
    graph_nodes,
    ops_on_tpu,
    tensor_names,
)
from tfx_tpu_trainer.serving._comparison import Finding, difference
from tfx_tpu_trainer.serving._inspect import SignatureDescription, describe_meta_graph, needed_nodes
from tfx_tpu_trainer.serving._requests import RequestError, read_warmup, request_inputs
from tfx_tpu_trainer.serving._saved_model_file import VARIABLES, meta_graph_with, read_saved_model
from tfx_tpu_trainer.serving._server_config import TPU_BATCHING

v1 = tf.compat.v1
Inputs = Mapping[str, np.ndarray]

SAME_BATCH = 1e-6
"""The largest difference of answers to the same batch, relative to an output's largest absolute value."""

Answer = Callable[[str, Mapping[str, np.ndarray]], dict[str, np.ndarray]]
"""Answers a request to a signature."""

_INIT_OP = "__saved_model_init_op"

# Op -> the attribute with its number of copies, if it has one. On one core, these ops pass on their first input; an
# export runs each request on one core.
_PASSES_ON = {
    "CrossReplicaSum": None,
    "TPUPartitionedInput": "N",
    "TPUReplicatedInput": "N",
    "TPUReplicatedOutput": "num_replicas",
    "XlaAllReduce": None,
    "XlaSharding": None,
}

# Op -> the constant that replaces it: the number of the core, and the compiler's (empty) error.
_CONSTANTS = {"TPUCompilationResult": b"", "TPUOrdinalSelector": np.zeros(1, np.int32)}
# Op -> the name of its result inside a function; that of Identity and Const is `output`.
_RENAMED = {"TPUOrdinalSelector": "device_ordinals", "TPUReplicatedOutput": "outputs"}


def on_cpu(meta_graph: v1.MetaGraphDef) -> v1.MetaGraphDef:
    """Returns a copy of a metagraph that runs on a CPU, as far as its TPU-only ops are known.

    Marks for the TPU's compiler and devices are dropped, so `outside_compilation` has no effect. Batches are made
    and padded as before, but none waits for further requests. An unknown op stays unchanged; TensorFlow names it when
    it has to run.
    """
    copy = v1.MetaGraphDef()
    copy.CopyFrom(meta_graph)
    for node in copy.graph_def.node:
        _translate(node)
    for function in copy.graph_def.library.function:
        renamed = {}
        for node in function.node_def:
            if node.op in _RENAMED:
                renamed[f"{node.name}:{_RENAMED[node.op]}:0"] = f"{node.name}:output:0"
            _translate(node)
        for node in function.node_def:
            for place, source in enumerate(node.input):
                node.input[place] = renamed.get(source, source)
        for name, source in function.ret.items():
            function.ret[name] = renamed.get(source, source)
    return copy


def _translate(node: v1.NodeDef) -> None:
    node.device = ""
    for name in [name for name in node.attr if name.startswith(("_tpu", "_xla"))]:
        del node.attr[name]
    if node.op == "TPUPartitionedCall":
        node.op = "StatefulPartitionedCall"
        del node.input[len(node.attr["Tin"].list.type)]  # the core's number
        node.attr.pop("autotuner_thresh", None)
    elif node.op == "BatchFunction":
        node.attr["batch_timeout_micros"].i = 0
    elif node.op == "TPUReplicateMetadata":
        node.op = "NoOp"
        node.attr.clear()
    elif node.op in _CONSTANTS:
        value = tf.make_tensor_proto(_CONSTANTS[node.op])
        node.op = "Const"
        node.attr["dtype"].type = value.dtype
        node.attr["value"].tensor.CopyFrom(value)
    elif node.op in _PASSES_ON:
        count = _PASSES_ON[node.op]
        if count is None or node.attr[count].i == 1:
            node.op = "Identity"
            kept = [name for at, name in enumerate(node.input) if at == 0 or name.startswith("^")]
            node.input[:] = kept
            for name in [name for name in node.attr if name != "T"]:
                del node.attr[name]


@contextlib.contextmanager
def served(path: str, meta_graph: v1.MetaGraphDef) -> Iterator[Answer]:
    """Yields a function that answers requests by a metagraph in memory, with a SavedModel's variables and assets."""
    config = v1.ConfigProto()
    # Ops that no signature needs may have no kernel here.
    config.graph_options.place_pruned_graph = True
    # The optimizer would rewrite each graph differently, and so round differently.
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with contextlib.closing(v1.Session(graph=tf.Graph(), config=config)) as session:
        with session.graph.as_default():
            saver = v1.train.import_meta_graph(meta_graph)
            prefix = os.path.join(path, VARIABLES)
            if saver is not None and tf.io.gfile.exists(f"{prefix}.index"):
                saver.restore(session, prefix)
            session.run(_init_ops(meta_graph), _assets(path, meta_graph))

        def answer(name: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            signature = meta_graph.signature_def[name]
            outputs = {
                key if info.name else f"{key} ({number})": tensor
                for key, info in signature.outputs.items()
                for number, tensor in enumerate(tensor_names(info))
            }
            return session.run(
                outputs, {signature.inputs[key].name: value for key, value in inputs.items()}
            )

        yield answer


def _init_ops(meta_graph: v1.MetaGraphDef) -> list[Any]:
    """Returns the op that fills an imported metagraph's tables."""
    if _INIT_OP in meta_graph.signature_def:
        info = meta_graph.signature_def[_INIT_OP].outputs[_INIT_OP]
        return [v1.get_default_graph().as_graph_element(info.name)]
    for key in (v1.saved_model.MAIN_OP_KEY, v1.saved_model.LEGACY_INIT_OP_KEY):
        if found := v1.get_collection(key):
            return list(found)
    return []


def _assets(path: str, meta_graph: v1.MetaGraphDef) -> dict[str, str]:
    """Returns file name tensors, each with its file in the SavedModel's folder."""
    files = list(meta_graph.asset_file_def)
    key = tf.saved_model.ASSETS_KEY
    if not files and key in meta_graph.collection_def:
        for packed in meta_graph.collection_def[key].any_list.value:
            files.append(meta_graph_pb2.AssetFileDef())
            packed.Unpack(files[-1])
    return {
        file.tensor_info.name: os.path.join(path, tf.saved_model.ASSETS_DIRECTORY, file.filename)
        for file in files
    }


# Other batches sum in another order, which shows in 8 or 11 fraction bits.
_OTHER_BATCH, _OTHER_BATCH_HALF = 1e-5, 1e-2
_HALF = frozenset({tf.bfloat16.as_datatype_enum, tf.float16.as_datatype_enum})
_NO_KERNEL = re.compile(r"No OpKernel was registered to support Op '(\w+)'|No registered '(\w+)'")
_MADE_UP_ROWS = 3


def _count(rows: int | None) -> str:
    return "1 row" if rows == 1 else f"{rows} rows"


class _Request(NamedTuple):
    """Rows that both graphs answer."""

    signature: str
    inputs: Inputs
    rows: int | None  # Their number; `None` if the inputs disagree.
    padded: int | None = None  # The size to which the batch is padded for the TPU.

    def __str__(self) -> str:
        if self.padded:
            return f"{_count(self.rows)} padded to {self.padded}"
        return "1 request" if self.rows is None else _count(self.rows)


def compare_graphs(
    path: str | bytes | os.PathLike[str],
    inputs: Mapping[str, Inputs],
    *,
    relative_tolerance: float = SAME_BATCH,
) -> Finding:
    """Compares the answers of a SavedModel's metagraph for TPU hosts, run on this CPU, with those for CPU hosts.

    TPU-only ops are replaced by their meaning on one core. One request has all rows; further ones are too small for
    each size to which batches are padded (the model's own, or a server's 8, 32 and 128).

    Args:
        path: The SavedModel.
        inputs: Signature name -> input name -> array.
        relative_tolerance: The largest difference between answers to the same batch, relative to the largest absolute
            value of an output. Defaults to 1e-6. Batches of other sizes may differ by 1e-5, or by 1e-2 if the model
            computes in bfloat16 or float16.

    Returns:
        "passed" if all answers agree; "failed" if one does not, or can't be computed; "not run" if a metagraph or rows
        are missing, or an op runs only on a TPU. The detail names the largest difference and its place.
    """
    path = os.fsdecode(path)
    saved_model = read_saved_model(path)
    of_host = meta_graph_with(saved_model, HOST_TAGS)
    of_tpu = meta_graph_with(saved_model, TPU_TAGS)
    if of_host is None or of_tpu is None:
        missing = "CPU" if of_host is None else "TPU"
        return Finding("not run", f"it has no metagraph for {missing} hosts")
    signatures = describe_meta_graph(of_tpu).signatures
    asked = {
        name: given
        for name, given in inputs.items()
        if name in signatures and name in of_host.signature_def
    }
    not_asked = sorted(set(signatures) - set(asked))
    if not asked:
        return Finding("not run", f"there are no rows for its signatures ({', '.join(not_asked)})")
    translated = on_cpu(of_tpu)
    if unknown := _only_on_tpu(translated):
        return Finding("not run", f"could not run: op {', op '.join(unknown)}")
    batching = _Batching(of_tpu)
    requests = list(_requests(asked, signatures, batching))
    expected = _answers(path, of_host, requests, "serve")
    if isinstance(expected, Finding):
        return expected
    padded = requests if batching.is_own else [_padded(request) for request in requests]
    answered = _answers(path, translated, padded, "serve, tpu")
    if isinstance(answered, Finding):
        return answered
    tolerances = (relative_tolerance, max(relative_tolerance, batching.tolerance))
    return _compare(requests, expected, answered, tolerances, batching.is_own, not_asked)


class _Batching:
    """How requests to the metagraph for TPU hosts are batched and padded."""

    def __init__(self, meta_graph: v1.MetaGraphDef) -> None:
        nodes = list(all_nodes(meta_graph.graph_def))
        own = [node for node in nodes if node.op == "BatchFunction"]
        self.is_own = bool(own)  # Otherwise a server batches.
        sizes = {size for node in own for size in node.attr["allowed_batch_sizes"].list.i}
        self.sizes: Sequence[int] = sorted(sizes) if own else TPU_BATCHING.allowed_batch_sizes
        limits = [
            node.attr["max_batch_size"].i
            for node in own
            if not node.attr["enable_large_batch_splitting"].b
        ]
        self.limit = min(limits, default=None)  # The most rows of a request.
        half = any(attr.type in _HALF for node in nodes for attr in node.attr.values())
        self.tolerance = _OTHER_BATCH_HALF if half else _OTHER_BATCH


def _only_on_tpu(meta_graph: v1.MetaGraphDef) -> list[str]:
    nodes = needed_nodes(meta_graph)
    functions = graph_nodes.functions_of(meta_graph.graph_def.library)
    called = graph_nodes.nodes_called(nodes, functions)
    return sorted({n.op for n in (*nodes, *called) if ops_on_tpu.is_for_tpus_alone(n.op)})


def _requests(
    asked: Mapping[str, Inputs],
    signatures: Mapping[str, SignatureDescription],
    batching: _Batching,
) -> Iterator[_Request]:
    for name, given in asked.items():
        counts = {len(value) if np.ndim(value) else None for value in given.values()}
        count = counts.pop() if len(counts) == 1 else None
        takes_any = all(
            tensor.shape is None or (tensor.shape and tensor.shape[0] is None)
            for tensor in signatures[name].inputs.values()
        )
        if not count or not takes_any:
            yield _Request(name, given, count)
            continue
        if batching.limit:
            count = min(count, batching.limit)
        yield from _by_batch(name, given, count, batching)


def _by_batch(name: str, given: Inputs, count: int, batching: _Batching) -> Iterator[_Request]:
    """Yields a request that needs no padding, and for each size one that needs it."""
    left = count % batching.sizes[-1] if batching.is_own and batching.sizes else 0
    # Rows are repeated until the model's own batching has nothing to pad.
    whole = count - left + next(size for size in (0, *batching.sizes) if size >= left)
    yield _Request(name, _rows(given, np.arange(whole) % count), whole)
    for before, size in zip((0, *batching.sizes), batching.sizes, strict=False):
        # At least three rows, so copies of one of them change a mean.
        rows = min(max(before + 1, 3), size - 1)
        if 0 < rows <= count:
            yield _Request(name, _rows(given, np.arange(rows)), rows, size)


def _rows(inputs: Inputs, at: np.ndarray) -> Inputs:
    return {key: value[at] for key, value in inputs.items()}


def _padded(request: _Request) -> _Request:
    """Pads a request like a server: with copies of a row."""
    if request.rows is None or request.padded is None:
        return request
    at = np.arange(request.padded)
    return request._replace(inputs=_rows(request.inputs, np.where(at < request.rows, at, 0)))


_Answered = list[dict[str, np.ndarray]]


def _answers(
    path: str, meta_graph: v1.MetaGraphDef, requests: Sequence[_Request], tags: str
) -> _Answered | Finding:
    answered: _Answered = []
    try:
        with served(path, meta_graph) as answer:
            for request in requests:
                answered.append(_answer(answer, request))
        return answered
    except (tf.errors.OpError, ValueError, KeyError, TypeError) as error:
        text = error.message if isinstance(error, tf.errors.OpError) else str(error)
        if found := _NO_KERNEL.search(text):
            return Finding("not run", f"could not run: op {found[1] or found[2]} has no CPU kernel")
        asked = requests[len(answered)].signature
        if isinstance(error, tf.errors.UnimplementedError):
            return Finding("not run", f"could not run: {first_reason(text)}")
        return Finding("failed", f"{tags} can't answer {asked} on this CPU: {first_reason(text)}")


def _answer(answer: Answer, request: _Request) -> dict[str, np.ndarray]:
    answered = answer(request.signature, request.inputs)
    return {key: np.asarray(value) for key, value in answered.items()}


def _compare(
    requests: Sequence[_Request],
    expected: _Answered,
    answered: _Answered,
    tolerances: tuple[float, float],
    batches_itself: bool,
    not_asked: Sequence[str],
) -> Finding:
    largest, where, problems = 0.0, "", []
    for request, of_host, of_tpu in zip(requests, expected, answered, strict=True):
        other_batch = batches_itself or request.padded is not None
        if lacking := sorted(set(of_host) ^ set(of_tpu)):
            has = "serve" if lacking[0] in of_host else "serve, tpu"
            return Finding("failed", f"only {has} answers {request.signature}[{lacking[0]!r}]")
        for key, value in sorted(of_host.items()):
            output = of_tpu[key]
            if request.padded and not batches_itself:
                if not output.ndim or len(output) != request.padded:
                    continue  # No server can distinguish its rows.
                output = output[: request.rows]
            found = difference(output, value, tolerances[other_batch])
            place = f"{request.signature}[{key!r}], row {found.row}"
            if found.problem:
                problems.append((found.size, request, f"{place} of {request}: {found.problem}"))
            elif found.size > largest:
                largest, where = found.size, f" (of the output's largest value), in {place}"
    asked = ", ".join(dict.fromkeys(request.signature for request in requests))
    if problems:
        # A difference without padding is not caused by padding.
        plain = [problem for problem in problems if problem[1].padded is None]
        _, request, text = max(plain or problems, key=lambda problem: problem[0])
        because = "" if plain else "; padding rows change the answers to others"
        return Finding("failed", f"{text}, from what serve answers{because}")
    batches = ", ".join(dict.fromkeys(map(str, requests)))
    if not any(request.padded for request in requests):
        batches += ", none padded"
    rest = f"; not asked: {', '.join(not_asked)}" if not_asked else ""
    return Finding("passed", f"{asked}: {batches}; largest difference {largest:.2g}{where}{rest}")


def inputs_to_ask(
    path: str | bytes | os.PathLike[str], examples: Sequence[bytes] = ()
) -> dict[str, Inputs]:
    """Makes requests to the metagraph for TPU hosts, for a model without available rows.

    Args:
        path: The SavedModel.
        examples: Serialized tf.Examples. Defaults to none: the largest of its warm-up requests is used, and numbers are
            made up for signatures that take only numbers.

    Returns:
        Signature name -> input name -> array; no entry for a signature without rows.

    Raises:
        ValueError: If the rows are not tf.Examples, or the warm-up requests can't be read.
    """
    meta_graph = meta_graph_with(read_saved_model(path), TPU_TAGS)
    signatures = {} if meta_graph is None else describe_meta_graph(meta_graph).signatures
    asked: dict[str, Inputs] = {}
    if examples:
        try:
            rows = [tf.train.Example.FromString(each).features.feature for each in examples]
        except message.DecodeError as error:
            raise ValueError(
                f"the rows are not tf.Examples ({error}); give a file of them"
            ) from None
        known = {name for row in rows for name in row}
        for name, signature in signatures.items():
            # A feature that no row has would be sent as missing, which some models reject.
            if len(signature.inputs) == 1 or known.issuperset(signature.inputs):
                with contextlib.suppress(RequestError):
                    asked[name] = request_inputs(signature, examples)
        return asked
    warmup = [
        {key: tf.make_ndarray(tensor) for key, tensor in log.predict_log.request.inputs.items()}
        for log in read_warmup(path)
    ]
    # Warm-up requests are sorted by size; the last one is the largest.
    for name, signature in signatures.items():
        given = next(
            (each for each in reversed(warmup) if set(each) == set(signature.inputs)), None
        )
        given = _made_up(signature) if given is None else given
        if given is not None:
            asked[name] = given
    return asked


def _made_up(signature: SignatureDescription) -> Inputs | None:
    draw = np.random.default_rng(0)
    made: dict[str, np.ndarray] = {}
    for key, tensor in signature.inputs.items():
        dtype = tf.dtypes.as_dtype(tensor.dtype) if tensor.shape is not None else tf.string
        if not (dtype.is_floating or dtype.is_integer or dtype.is_bool):
            return None
        shape = [_MADE_UP_ROWS if size is None else size for size in tensor.shape or ()]
        values = draw.normal(size=shape) if dtype.is_floating else draw.integers(0, 2, shape)
        made[key] = values.astype(dtype.as_numpy_dtype)
    return made
