"""Explains TensorFlow's errors in the model's terms, and names the hook that caused one."""

import contextlib
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.messages import is_of_this_package
from tfx_tpu_trainer.estimator._engine.feeding.input_tensors import named_leaves
from tfx_tpu_trainer.estimator._engine.graph_nodes import upstream
from tfx_tpu_trainer.estimator._engine.template import ModelTemplate

v1 = tf.compat.v1

# The prefixes of names in copies of a model, which the model's author does not know.
_COPIES = re.compile(r"^(?:.*/)?(?:batch|step|cores|short_batch)/core\d+/")
_SHORT_BATCH = "short_batch/"
_PREAMBLE = "Graph execution error:"

_PYTHON_ERROR = re.compile(r"\A(\w[\w.]*: .*?)\nTraceback \(most recent call last\):\n(.*)", re.S)
_PYTHON_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line \d+, in .*\n(?:    .*\n)?')
_STRUCTURE = re.compile(
    r"`generator` yielded an element that did not match the expected structure\. The expected "
    r"structure was (.*), but the yielded element was (.*)\.$",
    re.S,
)
_SHAPE = re.compile(
    r"`generator` yielded an element of shape (\(.*?\)) where an element of shape (\(.*?\)) was"
)
_TYPE = re.compile(
    r"`generator` yielded an element that could not be converted to the expected type\. The "
    r"expected type was (\w+)"
)
_COMPONENT = re.compile(
    r"(?:Cannot batch tensors|Incompatible shapes|does not match the expected shape).*?"
    r"component (\d+)"
)
_OTHER_ROWS = re.compile(
    r"Input to reshape is a tensor with|[Ii]ncompatible shapes|Matrix size-incompatible|"
    r"required broadcastable shapes|must be equal|input must have"
)
# Messages whose first line is enough.
_FIRST_LINE_IS_ENOUGH = re.compile(
    r"assertion failed: |indices\[[\d,]*\] = -?\d+ is not in|Received a label value of|"
    r"Cast \w+ to \w+ is not supported|OOM when allocating tensor with shape"
)
_NAN = re.compile(r"Gradient for (\S+) is NaN")
_UNFED = re.compile(r"You must feed a value for placeholder tensor '([^']+)'")
# Newer TensorFlow names the dataset first.
_OF_DATASET = re.compile(
    r"\AError in user-defined function passed to \S+ transformation with iterator: \S+: "
)
_FUNCTIONS = re.compile(r"\A(?:\{\{function_node \S+\}\} )+")
_NODE = re.compile(r"\{\{node (\S+)\}\}")


@contextlib.contextmanager
def run_errors_explained(
    template: ModelTemplate, *, at_nan: Callable[[], str] | None = None
) -> Iterator[None]:
    """Explains an error of a session call to the author of input_fn and model_fn; it keeps its type."""
    try:
        yield
    except tf.errors.OpError as error:
        explained = explain(error.message, template, at_nan=at_nan)
        # The base class is used for codes without their own class.
        if explained is None or type(error) is tf.errors.OpError:
            raise
        # Without the op: the error would print its whole history.
        raise type(error)(error.node_def, None, explained) from error
    except UnicodeDecodeError as error:
        # TensorFlow's message quotes a record that can't be parsed, and is not valid text.
        if not _is_of_session_call(error):
            raise
        said = _FUNCTIONS.sub("", error.object.decode(errors="backslashreplace"))
        raise tf.errors.InvalidArgumentError(None, None, _first_line(said)) from error


def explain(
    message: str, template: ModelTemplate, *, at_nan: Callable[[], str] | None = None
) -> str | None:
    """Returns an explanation of an error's message; `None` to keep the message."""
    said = without_preamble(message)
    nan = _NAN.search(said)
    if nan and at_nan is not None:
        return f"{nan[0]}: training stopped {at_nan()}"
    if unfed := _UNFED.match(said):
        return (
            f"You must feed a value for placeholder tensor {_COPIES.sub('', unfed[1])!r}, which nothing feeds: give "
            "the value as a feature or in params, or let a hook's before_run feed it."
        )
    leaves = named_leaves(template.features, template.labels)
    python_error = _PYTHON_ERROR.match(said)
    if python_error:
        return _explain_python_error(python_error, "IteratorGetNext" in message, leaves)
    component = _COMPONENT.search(said)
    if component and "IteratorGetNext" in message:
        names = list(leaves)
        index = int(component[1])
        which = names[index] if index < len(names) else f"component {index}"
        return f"The input changed between batches, at {which}: {_first_line(said)}"
    if _OTHER_ROWS.search(said):
        return _explain_short_batch(message, said, template.mode, leaves)
    if _FIRST_LINE_IS_ENOUGH.match(said):
        return _in_one_line(message)
    return None


@contextlib.contextmanager
def opening_errors_explained() -> Iterator[None]:
    """Cuts errors of the ops that initialize a session to one line with the op's name; they keep their type."""
    try:
        yield
    except tf.errors.OpError as error:
        if type(error) is tf.errors.OpError or not error.message.startswith(_PREAMBLE):
            raise
        raise type(error)(error.node_def, None, _in_one_line(error.message)) from error


def _in_one_line(message: str) -> str:
    op = "IteratorGetNext" if "IteratorGetNext" in message else _op(message)
    return f"{_first_line(without_preamble(message))}{f' (at {op!r})' if op else ''}"


def _explain_python_error(error: re.Match[str], of_input: bool, leaves: Mapping[str, Any]) -> str:
    where = "of the input" if of_input else "of the model"
    changed = _explain_change(error[1], leaves)
    if changed:
        return f"The input changed between batches: {changed}"
    frames = [
        frame[0]
        for frame in _PYTHON_FRAME.finditer(error[2])
        if not _is_tensorflow(frame["file"]) and not is_of_this_package(frame["file"])
    ]
    if not frames:
        return error[1]
    return f"{error[1]}\nPython code {where} raised it:\n{''.join(frames)}".rstrip()


def _explain_change(error: str, leaves: Mapping[str, Any]) -> str | None:
    """Describes how a generator's element differs from its output_signature."""
    structure = _STRUCTURE.search(error)
    if structure:
        wanted, given = (set(re.findall(r"'([^']+)':", part)) for part in structure.groups())
        lacks = [f"lacks the key {key!r}" for key in sorted(wanted - given)]
        more = [f"has the key {key!r}" for key in sorted(given - wanted)]
        differs = " and ".join([*lacks, *more]) or "has another structure"
        return (
            f"an element of the generator {differs}; its output_signature declares the structure "
            f"{structure[1]}."
        )
    shape = _SHAPE.search(error)
    if shape:
        declared = [int(size) for size in re.findall(r"\d+", shape[2])]
        # The generator's elements are rows, or else batches.
        names = _of_row_shape(leaves, declared) or _of_row_shape(leaves, declared[1:])
        return (
            f"an element of the generator has shape {shape[1]} where its output_signature "
            f"declares {shape[2]}{_among(names)}."
        )
    dtype = _TYPE.search(error)
    if dtype:
        names = [name for name, leaf in leaves.items() if leaf.dtype.name == dtype[1]]
        return (
            f"an element of the generator can't be converted to {dtype[1]}, which its "
            f"output_signature declares{_among(names)}."
        )
    return None


def _explain_short_batch(
    message: str, said: str, mode: str, leaves: Mapping[str, Any]
) -> str | None:
    """Explains the failure of an op on a batch with another number of rows than model_fn assumes."""
    short = any(_SHORT_BATCH in name for name in _NODE.findall(message))
    if not short and all(
        leaf.shape[:1].is_fully_defined() for leaf in leaves.values() if tf.is_tensor(leaf)
    ):
        return None
    op = _op(message) or "an op"
    cure = (
        "use tf.shape(x)[0] or -1, not params['batch_size'], or batch the dataset with "
        "drop_remainder=True."
    )
    if not short:
        return (
            f"model_fn fails on this batch, at {op!r} ({_first_line(said)}). The batches of this "
            f"input may differ in their number of rows; where model_fn assumes one, {cure}"
        )
    name = {"infer": "predict"}.get(mode, mode) + "_batch_size"
    return (
        f"The last batch has fewer rows than {name} and runs as one short last batch, but "
        f"model_fn assumes another number of rows, at {op!r} ({_first_line(said)}): {cure}"
    )


def _op(message: str) -> str | None:
    """Returns the name of the op that failed, as model_fn's author knows it."""
    node = _NODE.search(message) or re.search(r"Node: '([^']+)'", message)
    return _COPIES.sub("", node[1]) if node else None


def _of_row_shape(leaves: Mapping[str, Any], shape: list[int]) -> list[str]:
    return [
        name
        for name, leaf in leaves.items()
        if leaf.shape.rank and leaf.shape[1:].as_list() == shape
    ]


def without_preamble(message: str) -> str:
    """Returns a message without TensorFlow's description of where in the graph it arose."""
    said = message.removeprefix(_PREAMBLE).lstrip()
    if said.startswith("Detected at node"):
        said = re.sub(r"\A.*?^Node: '[^']*'\n", "", said, flags=re.S | re.M)
    return _OF_DATASET.sub("", said)


def _first_line(said: str) -> str:
    return said.split("\n", 1)[0].rstrip(".")


def _is_of_session_call(error: BaseException) -> bool:
    *_, last = traceback.walk_tb(error.__traceback__)
    return last[0].f_code.co_filename.endswith("/tensorflow/python/client/session.py")


def _is_tensorflow(file: str) -> bool:
    return "/tensorflow/python/" in file


def _among(names: list[str]) -> str:
    return f" (for {' or '.join(names)})" if names else ""


# TensorFlow's message, which the original's users see.
_NOT_FETCHABLE = "has been marked as not fetchable."

# The collection of the input ops of the replicas' computation.
_INPUTS = "tfx_tpu_trainer/inputs_of_cores"


def keep_from_hooks(inputs: Iterable[tf.Tensor]) -> None:
    """Prevents fetches of the ops that depend on some tensors of the default graph."""
    # TensorFlow does so for all of a TPU's model_fn. Ops that depend only on variables and constants have a value
    # outside of replicas too, and can be fetched.
    graph = v1.get_default_graph()
    on_replicas = {tensor.op for tensor in inputs}
    for op in on_replicas:
        graph.add_to_collection(_INPUTS, op)
    # One pass is enough: an op is made after its inputs, since v2 loops are single ops.
    for op in graph.get_operations():
        before = (*(tensor.op for tensor in op.inputs), *op.control_inputs)
        if op in on_replicas or not on_replicas.isdisjoint(before):
            on_replicas.add(op)
            graph.prevent_fetching(op)


def guarded(hooks: Iterable[v1.train.SessionRunHook]) -> list[v1.train.SessionRunHook]:
    """Wraps hooks so that an error of fetching from the replicas names the hook."""
    inputs = frozenset(v1.get_collection(_INPUTS))
    return [_GuardedHook(hook, inputs) if inputs else hook for hook in hooks]


class WrappedHook(v1.train.SessionRunHook):
    """A hook whose methods run in the context manager `around`."""

    def __init__(self, hook: v1.train.SessionRunHook) -> None:
        self.hook = hook

    def around(self) -> contextlib.AbstractContextManager[None]:
        """Returns the context manager for a call of a method."""
        return contextlib.nullcontext()

    def begin(self) -> None:
        with self.around():
            self.hook.begin()

    def after_create_session(self, session: v1.Session, coord: tf.train.Coordinator) -> None:
        with self.around():
            self.hook.after_create_session(session, coord)

    def before_run(self, run_context: v1.train.SessionRunContext) -> v1.train.SessionRunArgs | None:
        with self.around():
            return self.hook.before_run(run_context)

    def after_run(
        self, run_context: v1.train.SessionRunContext, run_values: v1.train.SessionRunValues
    ) -> None:
        with self.around():
            self.hook.after_run(run_context, run_values)

    def end(self, session: v1.Session) -> None:
        with self.around():
            self.hook.end(session)


class _GuardedHook(WrappedHook):
    def __init__(self, hook: v1.train.SessionRunHook, inputs: frozenset[tf.Operation]) -> None:
        super().__init__(hook)
        self._inputs = inputs
        self._known: set[str] = set()

    def before_run(self, run_context: v1.train.SessionRunContext) -> v1.train.SessionRunArgs | None:
        arguments = super().before_run(run_context)
        if arguments is not None:
            self._check(arguments.fetches, run_context.session.graph)
        return arguments

    def _check(self, fetches: Any, graph: tf.Graph) -> None:
        for fetch in _leaves(fetches):
            try:
                element = graph.as_graph_element(fetch)
            except (KeyError, TypeError, ValueError):
                continue  # The session can fetch it, or will raise the error.
            op = getattr(element, "op", element)
            if op.name in self._known:
                continue
            if self._is_kept(op):
                raise ValueError(f"Operation {op.name} {_NOT_FETCHABLE} {self._rule()}")
            self._known.add(op.name)

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            begin, found, _ = str(error).partition(_NOT_FETCHABLE)
            if not found:
                raise
            raise ValueError(f"{begin}{_NOT_FETCHABLE} {self._rule()}") from error

    def _is_kept(self, op: tf.Operation) -> bool:
        """Returns whether an op depends on the inputs, even if the hook has made it."""
        return any(each in self._inputs for each in upstream([op]))

    def _rule(self) -> str:
        return (
            f"The hook {type(self.hook).__name__} fetches it, but it is part of the computation "
            "on TPU cores: a hook runs on the host and must not capture tensors of model_fn. Give "
            "the tensor to host_call or eval_metrics of a TPUEstimatorSpec, whose functions run "
            "on the host; variables, such as the global step, can be fetched."
        )


def _leaves(fetches: Any) -> Iterator[Any]:
    if isinstance(fetches, Mapping):
        fetches = list(fetches.values())
    if isinstance(fetches, Sequence) and not isinstance(fetches, (str, bytes)):
        for fetch in fetches:
            yield from _leaves(fetch)
    elif fetches is not None:
        yield fetches
