"""Records what a program's estimators do, under either TensorFlow.

It imports only what the environment of the original has too.
"""

import contextlib
import functools
import glob
import os
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer._support.imports import without_notice
from tfx_tpu_trainer.workbench.prove import tf_private_seeds
from tfx_tpu_trainer.workbench.prove.records import Entry, Record

v1 = tf.compat.v1

# The variables are kept after each step until a record reaches this size.
_MOST_BYTES = 1 << 30
# The most elements kept of an op's output.
_MOST_ELEMENTS = 1 << 18
# The rows that an export is asked for.
_ASKED_ROWS = 3
# An initializer is drawn from this many times more, or until there are so many elements.
_DRAWS, _DRAWN = 100, 20_000
_RANDOM = re.compile(
    r"Random(?!Dataset)\w*|(Parameterized)?TruncatedNormal|Multinomial|\w*CandidateSampler"
)
_SEEDLESS = re.compile(r"Stateless\w*|RandomShuffleQueue\w*|\w*Crop")
_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


class Recorder:
    """Records the calls of all estimators.

    It begins with the initial values of the record `start`, and keeps the outputs of all ops in the step `probe`, which
    is a train call and a global step.
    """

    def __init__(
        self,
        folder: str,
        *,
        start: str | None = None,
        probe: Sequence[Any] | None = None,
        emulated: bool = False,
    ) -> None:
        os.makedirs(folder)
        self.record = Record(folder, tensorflow=tf.__version__)
        self.start = Record.load(start) if start else None
        self.probe = tuple(probe or ())
        self.emulated = emulated
        self.bytes_left = _MOST_BYTES
        self._calls: Counter[str] = Counter()
        self._folders: list[str] = []

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Records the block's calls, with one seed for all draws."""
        wrappers: dict[str, Callable[..., Any]] = {
            "train": self._train,
            "evaluate": self._evaluate,
            "predict": self._predict,
            "export_saved_model": self._export,
            "export_savedmodel": self._export,
        }
        random.seed(1)
        np.random.seed(1)
        with contextlib.ExitStack() as stack:
            stack.callback(self._finish)
            for name, wrapper in wrappers.items():
                # Version 2's class has some as attributes that raise.
                estimators = v1.estimator.Estimator.__mro__
                owner = next(each for each in estimators if name in vars(each))
                original = vars(owner)[name]
                stack.callback(setattr, owner, name, original)
                setattr(owner, name, self._method(original, wrapper))
            stack.enter_context(tf_private_seeds.held())
            yield

    def _method(
        self, original: Callable[..., Any], wrapper: Callable[..., Any]
    ) -> Callable[..., Any]:
        @functools.wraps(original)
        def method(estimator: Any, *arguments: Any, **named: Any) -> Any:
            self._check(os.fspath(estimator.model_dir))
            kind = original.__name__.partition("_")[0]
            self._calls[kind] += 1
            bound = functools.partial(original, estimator)
            return wrapper(f"{kind} {self._calls[kind]}", bound, *arguments, **named)

        return method

    def _check(self, folder: str) -> None:
        """Refuses a model_dir that can't be moved to the record, or that another run began."""
        if "://" in folder:
            raise ValueError(f"model_dir {folder} is remote: give the program a local folder.")
        if os.path.abspath(folder) not in self._folders:
            if tf.train.latest_checkpoint(folder) is not None:
                raise ValueError(
                    f"model_dir {folder} has a checkpoint: give the program an empty one."
                )
            self._folders.append(os.path.abspath(folder))

    def _train(
        self,
        call: str,
        train: Callable[..., Any],
        input_fn: Any,
        hooks: Any = None,
        *rest: Any,
        **named: Any,
    ) -> Any:
        hook = _StepHook(self, call)
        trained = train(input_fn, [*(hooks or ()), hook], *rest, **named)
        self.record.add(Entry("steps", call), {"number of steps": hook.steps})
        if hook.kept < hook.steps:
            self.record.partly.append(
                f"{call}: variables after {hook.kept} of {hook.steps} steps and in the last checkpoint (they are large)"
            )
        return trained

    def _evaluate(self, call: str, evaluate: Callable[..., Any], *rest: Any, **named: Any) -> Any:
        metrics = evaluate(*rest, **named)
        self.record.add(Entry("metrics", call), metrics or {})
        return metrics

    def _predict(
        self, call: str, predict: Callable[..., Any], *rest: Any, **named: Any
    ) -> Iterator[Any]:
        rows: list[Mapping[str, Any]] = []
        try:
            for row in predict(*rest, **named):
                rows.append(row if isinstance(row, dict) else {"predictions": row})
                yield row
        finally:
            values = {name: _stacked([row[name] for row in rows]) for name in (rows or [{}])[0]}
            self.record.add(Entry("predictions", call), values)

    def _export(self, call: str, export: Callable[..., Any], *rest: Any, **named: Any) -> Any:
        path = export(*rest, **named)
        types, answers, failed = _ask(tf.compat.as_str(path))
        self.record.add(Entry("exports' signatures", call), types)
        self.record.add(Entry("exports' answers", call), answers)
        self.record.partly += failed
        return path

    def _finish(self) -> None:
        """Completes the record, and moves the models away from the next side."""
        self.record.add(Entry("calls"), self._calls)
        for number, folder in enumerate(self._folders, 1):
            latest = tf.train.latest_checkpoint(folder)
            reader = latest and tf.train.load_checkpoint(latest)
            names = sorted(reader.get_variable_to_shape_map()) if reader else ()
            model = f"model {number}"
            self.record.add(
                Entry("checkpoints", model), {name: reader.get_tensor(name) for name in names}
            )
            self.record.add(Entry("events' tags", model), dict.fromkeys(_tags(folder), True))
            if os.path.isdir(folder):
                shutil.move(folder, os.path.join(self.record.folder, model))
        self.record.save()


class _StepHook(v1.train.SessionRunHook):
    """Keeps each step's loss and the variables after it."""

    def __init__(self, recorder: Recorder, call: str) -> None:
        self._recorder, self._record, self._call = recorder, recorder.record, call
        self.steps = 0
        # The initial values don't count.
        self.kept = -1

    def begin(self) -> None:
        """Adds ops that read the variables."""
        graph = v1.get_default_graph()
        unheld = _unheld(graph, emulated=self._recorder.emulated)
        self._record.unheld = sorted({*self._record.unheld, *unheld})
        self._step = v1.train.get_global_step()
        self._loss = graph.get_collection(v1.GraphKeys.LOSSES)[-1]
        self._variables = {each.op.name: each for each in v1.global_variables()}
        # Of a strategy's variable, one for each replica.
        self._initializers = {
            name: [one.initializer for one in getattr(each, "values", [each])]
            for name, each in self._variables.items()
        }
        self._ops = _ops_of_training(graph, self._loss) if self._recorder.probe else {}
        with tf.name_scope("recorder"):
            self._values = {
                name: tf.identity(each.read_value()) for name, each in self._variables.items()
            }

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Takes over the other side's initial values."""
        self._reached = int(session.run(self._step))
        if self._reached == 0:
            fed = {name: each[0].inputs[1] for name, each in self._initializers.items()}
            self._record.add(Entry("initializers", self._call, 0), _draw(session, fed))
            entry, start = Entry("variables", self._call, 0), self._recorder.start
            theirs = start.read(entry)[0] if start is not None and entry in start.entries else {}
            for name in theirs.keys() & self._variables.keys():
                variable, value = self._variables[name], theirs[name]
                if tf.TensorShape(value.shape) == variable.shape:
                    value = value.astype(fed[name].dtype.base_dtype.as_numpy_dtype)
                    ops = self._initializers[name]
                    session.run(ops, {op.inputs[1]: value for op in ops})
        self._keep_variables(session)

    def before_run(self, run_context: Any) -> Any:
        """Asks for the loss, and for the ops of the probed step."""
        probed = self._recorder.probe == (self._call, self._reached + 1)
        outputs = {name: each for name, each in self._ops.items() if not isinstance(each, str)}
        return v1.train.SessionRunArgs((self._loss, outputs if probed else {}))

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Keeps what the step computed."""
        loss, outputs = run_values.results
        self._reached = int(run_context.session.run(self._step))
        self.steps += 1
        self._record.add(Entry("losses", self._call, self._reached), {"loss": np.mean(loss)})
        if outputs:
            values = {**self._ops, **outputs}
            kept = {name: np.ravel(value)[:_MOST_ELEMENTS] for name, value in values.items()}
            self._record.add(Entry("ops", self._call, self._reached), kept)
        if self._recorder.bytes_left > 0:
            self._keep_variables(run_context.session)

    def _keep_variables(self, session: Any) -> None:
        entry = Entry("variables", self._call, self._reached)
        self._recorder.bytes_left -= self._record.add(entry, session.run(self._values))
        self.kept += 1


def _ancestors(tensors_and_ops: Sequence[Any]) -> set[Any]:
    """Returns the ops upstream of tensors or ops, including these."""
    waiting = [getattr(each, "op", each) for each in tensors_and_ops]
    found = set(waiting)
    while waiting:
        op = waiting.pop()
        new = {*(each.op for each in op.inputs), *op.control_inputs} - found
        found |= new
        waiting += new
    return found


def _ops_of_training(graph: Any, loss: Any) -> dict[str, Any]:
    """Returns a step's ops in the order of the program: their outputs, and the attributes of those that only write."""
    keys = v1.GraphKeys
    updates = graph.get_collection(keys.TRAIN_OP) + graph.get_collection(keys.UPDATE_OPS)
    needed = _ancestors([loss, *updates])
    found: dict[str, Any] = {}
    for op in graph.get_operations():
        if op not in needed:
            continue
        if all(output.dtype != output.dtype.base_dtype for output in op.outputs):
            found[op.name] = _plain_attributes(op)
        elif graph.is_fetchable(op):
            found |= {
                output.name.removesuffix(":0"): output
                for output in op.outputs
                # References and resources have no values.
                if output.dtype == output.dtype.base_dtype
                and output.dtype not in (tf.resource, tf.variant)
            }
    return found


def _plain_attributes(op: Any) -> str:
    """Returns an op's switches, numbers and types as text."""
    plain = {
        name: getattr(value, value.WhichOneof("value"))
        for name, value in sorted(op.node_def.attr.items())
        if value.WhichOneof("value") in ("b", "i", "f", "type") and not name.startswith("_")
    }
    return ", ".join(f"{name}={value}" for name, value in plain.items())


def _unheld(graph: Any, *, emulated: bool) -> Iterator[str]:
    """Finds what differs from run to run on any side."""
    initializing = _ancestors(
        [each.initializer for each in v1.global_variables() + v1.local_variables()]
    )
    nodes = [(op.node_def, "") for op in graph.get_operations() if op not in initializing]
    for function in graph.as_graph_def().library.function:
        nodes += [(node, f" in {function.signature.name}") for node in function.node_def]
    for node, where in nodes:
        if node.op in _PYTHON:
            yield f"{node.name}{where} ({node.op}) calls Python, whose results are not compared"
        elif _RANDOM.fullmatch(node.op) and not _SEEDLESS.fullmatch(node.op):
            seeds = [node.attr[name].i for name in ("seed", "seed2") if name in node.attr]
            if not any(seeds):
                yield f"{node.name}{where} ({node.op}) draws without a seed"
            elif emulated and not where:
                yield f"{node.name} ({node.op}) draws other numbers on each core"


def _draw(session: Any, initial: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a side's initial values: for small variables some draws, to compare their distributions."""
    drawn: dict[str, list[Any]] = {}
    for name, tensor in initial.items():
        # Some need what is gone once the session is made.
        with contextlib.suppress(tf.errors.OpError):
            drawn[name] = [session.run(tensor)]
    for _ in range(_DRAWS):
        few = [name for name, values in drawn.items() if sum(map(np.size, values)) < _DRAWN]
        for name, value in session.run({name: initial[name] for name in few}).items():
            # A constant, or a draw that the graph's seed alone decides.
            if not np.array_equal(value, drawn[name][-1]):
                drawn[name].append(value)
    return {name: np.stack(values) for name, values in drawn.items()}


def _tags(folder: str) -> list[str]:
    """Lists the tags of a model's summaries with their folders, except rates, which depend on the clock."""
    tags = set()
    for path in glob.glob(f"{glob.escape(folder)}/**/*tfevents*", recursive=True):
        where = os.path.relpath(os.path.dirname(path), folder)
        for event in v1.train.summary_iterator(path):
            tags |= {f"{where}: {each.tag}" for each in event.summary.value}
    return sorted(tag for tag in tags if not tag.endswith("/sec"))


def _stacked(rows: Sequence[Any]) -> np.ndarray:
    """Stacks rows that may differ in length."""
    arrays = [np.asarray(row) for row in rows]
    same = len({array.shape for array in arrays}) == 1
    return np.stack(arrays) if same else np.concatenate([np.ravel(array) for array in arrays])


def _ask(path: str) -> tuple[dict[str, str], dict[str, Any], list[str]]:
    """Returns an export's types by signature and tensor, its answers, and why signatures could not be asked."""
    types: dict[str, str] = {}
    answers: dict[str, Any] = {}
    failed: list[str] = []
    with tf.Graph().as_default() as graph, v1.Session() as session:
        load = without_notice(v1.saved_model.load)
        signatures = load(session, ["serve"], path).signature_def
        for name, signature in sorted(signatures.items()):
            for way, tensors in (("input", signature.inputs), ("output", signature.outputs)):
                for key, info in tensors.items():
                    shape = tf.TensorShape(info.tensor_shape)
                    types[f"{name}, {way} {key}"] = f"{tf.as_dtype(info.dtype).name}{shape}"
            outputs = {key: info.name for key, info in signature.outputs.items()}
            try:
                found = session.run(outputs, _sample(graph, signature.inputs))
            except (tf.errors.OpError, TypeError, ValueError) as error:
                failed.append(f"signature {name} is not asked: {str(error).splitlines()[0]}")
            else:
                answers |= {f"{name}: {key}": value for key, value in found.items()}
    return types, answers, failed


def _sample(graph: tf.Graph, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Makes rows: seeded numbers, or serialized tf.Examples."""
    random = np.random.default_rng(1)
    parsing = [each for each in graph.get_operations() if each.type == "ParseExampleV2"]
    rows: dict[str, np.ndarray] = {}
    for _, info in sorted(inputs.items()):
        dtype = tf.as_dtype(info.dtype)
        shape = [
            _ASKED_ROWS if size is None else size for size in tf.TensorShape(info.tensor_shape)
        ]
        if dtype == tf.string:
            texts = [_example(parsing[0], random) if parsing else b"1" for _ in range(_ASKED_ROWS)]
            rows[info.name] = np.resize(np.array(texts, object), shape)
        else:
            value = random.normal(size=shape) if dtype.is_floating else random.integers(0, 2, shape)
            rows[info.name] = np.asarray(value).astype(dtype.as_numpy_dtype)
    return rows


def _example(parsing: tf.Operation, random: np.random.Generator) -> bytes:
    """Makes a tf.Example that a graph's own parsing can read."""
    sparse, dense = (tf.get_static_value(parsing.inputs[number]) for number in (2, 3))
    keys = [*zip(dense, parsing.get_attr("Tdense"), parsing.get_attr("dense_shapes"))]
    keys += [(key, kind, None) for key, kind in zip(sparse, parsing.get_attr("sparse_types"))]
    example = tf.train.Example()
    for key, kind, shape in keys:
        count = 1 if shape is None else max(int(np.prod([each.size for each in shape.dim])), 1)
        feature = example.features.feature[tf.compat.as_str(key)]
        if kind == tf.string:
            feature.bytes_list.value.extend([b"1"] * count)
        elif kind == tf.int64:
            feature.int64_list.value.extend(random.integers(0, 2, count))
        else:
            feature.float_list.value.extend(random.normal(size=count))
    return example.SerializeToString()
