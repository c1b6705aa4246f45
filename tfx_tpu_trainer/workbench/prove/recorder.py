"""Runs a program and records its estimators' calls, under either TensorFlow.

Both interpreters run this file by its path, so it imports only packages that the original's environment has, too. A
record is a folder: `record.json` lists the calls in order, and arrays are next to it.
"""

import contextlib
import functools
import importlib
import importlib.util
import json
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1

# Variables' values are kept after each step until a record reaches this size; those of the last checkpoint always are.
_MOST_BYTES = 1 << 30
# The most elements kept of an op's output, and of an initializer's draws.
_MOST_ELEMENTS = 1 << 18
_DRAWN = 20_000
_RANDOM = re.compile(
    r"Random(?!Dataset)\w*|(Parameterized)?TruncatedNormal|Multinomial|\w*CandidateSampler"
)
_SEEDLESS = re.compile(r"Stateless\w*|RandomShuffleQueue\w*|\w*Crop")
_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")
_HERE = os.path.dirname(os.path.abspath(__file__))


class Recorder:
    """Records the calls of all estimators while its block runs.

    Attributes:
        folder: The folder of the record; it must not exist.
        start: The record of the other side, whose initial values this side uses; `None` on the first side.
        probe: The number of a train call, and a step whose ops' outputs are kept.
        emulated: Whether the cores are emulated, with their own draws.
    """

    def __init__(
        self,
        folder: str,
        *,
        start: str | None = None,
        probe: Sequence[int] | None = None,
        emulated: bool = False,
    ) -> None:
        """Makes the folder."""
        os.makedirs(folder)
        self.folder, self.start, self.probe, self.emulated = folder, start, probe, emulated
        self.bytes_left = _MOST_BYTES
        self._calls: list[dict[str, Any]] = []
        self._folders: list[str] = []

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Records the block's calls, with one seed for all draws."""
        wrapped = {
            "train": self._train,
            "evaluate": self._evaluate,
            "predict": self._predict,
            "export_saved_model": self._export,
            "export_savedmodel": self._export,
        }
        owners = {name: _owner(name) for name in wrapped}
        originals = {name: getattr(owners[name], name) for name in wrapped}
        for name, wrap in wrapped.items():
            setattr(owners[name], name, functools.wraps(originals[name])(wrap(originals[name])))
        random.seed(1)
        np.random.seed(1)
        seeds = _load("tf_private_seeds")
        try:
            with seeds.held():
                yield
        finally:
            for name, original in originals.items():
                setattr(owners[name], name, original)
            self._finish()

    def begin(self, kind: str, estimator: Any, **values: Any) -> dict[str, Any]:
        """Adds a call to the record."""
        folder = os.path.abspath(os.fspath(estimator.model_dir))
        if "://" in str(estimator.model_dir):
            raise ValueError(
                f"model_dir {estimator.model_dir} is remote: give the program a folder of this machine."
            )
        if self.folder.startswith(f"{folder}{os.sep}"):
            raise ValueError(f"the records would be in model_dir {folder}: name another folder.")
        if folder not in self._folders:
            if tf.train.latest_checkpoint(folder) is not None:
                raise ValueError(
                    f"model_dir {folder} has a checkpoint: give the program an empty one, to prove it from step 0."
                )
            self._folders.append(folder)
        call = {
            "kind": kind,
            "number": len(self._calls),
            "model": self._folders.index(folder),
            **values,
        }
        self._calls.append(call)
        return call

    def write(self, name: str, arrays: Mapping[str, Any]) -> str:
        """Writes arrays; types that NumPy lacks, such as bfloat16, are widened."""
        values = {key: np.asarray(value) for key, value in arrays.items()}
        eps = [_eps(value.dtype) for value in values.values()]
        plain = {f"a{number}": _plain(value) for number, value in enumerate(values.values())}
        np.savez(
            os.path.join(self.folder, name), names=np.array(list(values), str), eps=eps, **plain
        )
        return name

    def _train(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def train(
            estimator: Any, input_fn: Any, hooks: Any = None, *rest: Any, **named: Any
        ) -> Any:
            call = self.begin("train", estimator, steps=[], losses=[], values={}, unheld=[])
            hook = _make_hook(self, call)
            return original(estimator, input_fn, [*(hooks or ()), hook], *rest, **named)

        return train

    def _evaluate(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def evaluate(estimator: Any, *rest: Any, **named: Any) -> Any:
            call = self.begin("evaluate", estimator)
            metrics = original(estimator, *rest, **named)
            call["values"] = self.write(f"call-{call['number']}.npz", metrics or {})
            return metrics

        return evaluate

    def _predict(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def predict(estimator: Any, *rest: Any, **named: Any) -> Iterator[Any]:
            call, rows = self.begin("predict", estimator), []
            try:
                for row in original(estimator, *rest, **named):
                    if self.bytes_left > 0:
                        rows.append(row if isinstance(row, dict) else {"predictions": row})
                        self.bytes_left -= sum(
                            np.asarray(each).nbytes for each in rows[-1].values()
                        )
                    yield row
            finally:
                names = rows[0] if rows else ()
                values = {name: _stacked([row[name] for row in rows]) for name in names}
                call["values"] = self.write(f"call-{call['number']}.npz", values)

        return predict

    def _export(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def export(estimator: Any, *rest: Any, **named: Any) -> Any:
            path = original(estimator, *rest, **named)
            call = self.begin("export", estimator)
            call["path"] = f"export-{call['number']}"
            shutil.copytree(tf.compat.as_str(path), os.path.join(self.folder, call["path"]))
            return path

        return export

    def _finish(self) -> None:
        """Writes the record, and moves the models away from the next side."""
        models = []
        for number, folder in enumerate(self._folders):
            latest = tf.train.latest_checkpoint(folder)
            reader = latest and tf.train.load_checkpoint(latest)
            names = sorted(reader.get_variable_to_shape_map()) if reader else ()
            values = {name: reader.get_tensor(name) for name in names}
            models.append(
                {
                    "checkpoint": self.write(f"checkpoint-{number}.npz", values),
                    "tags": _tags(folder),
                }
            )
            if os.path.isdir(folder):
                shutil.move(folder, os.path.join(self.folder, f"model-{number}"))
        record = {"tensorflow": tf.__version__, "calls": self._calls, "models": models}
        with open(os.path.join(self.folder, "record.json"), "w", encoding="utf-8") as file:
            json.dump(record, file)


def _owner(name: str) -> Any:
    """Returns the class that defines a method of all estimators."""
    # Version 2's class has some as attributes that raise.
    return next(each for each in v1.estimator.Estimator.__mro__ if name in vars(each))


# A function instead of a class: the two sides' hooks have base classes from different modules.
def _make_hook(recorder: Recorder, call: dict[str, Any]) -> Any:
    class StepHook(v1.train.SessionRunHook):
        """Keeps each step's loss and the variables after it."""

        def begin(self) -> None:
            graph = v1.get_default_graph()
            call["unheld"] = sorted(_unheld(graph, emulated=recorder.emulated))
            self.step = v1.train.get_global_step()
            self.loss = graph.get_collection(v1.GraphKeys.LOSSES)[-1]
            self.variables = {each.op.name: each for each in v1.global_variables()}
            self.initial = {
                name: each.initializer.inputs[1] for name, each in self.variables.items()
            }
            self.outputs = _outputs_of_training(graph, self.loss) if recorder.probe else []
            with tf.name_scope("recorder"):
                self.values = {
                    name: tf.identity(each.read_value()) for name, each in self.variables.items()
                }

        def after_create_session(self, session: Any, coord: Any) -> None:
            self.reached = int(session.run(self.step))
            if self.reached == 0:
                call["own"] = recorder.write(
                    f"own-{call['number']}.npz", _draw(session, self.initial)
                )
                self._take_over(session)
            self._keep(session, self.reached)

        def _take_over(self, session: Any) -> None:
            """Sets the variables to the other side's initial values."""
            path = recorder.start and os.path.join(recorder.start, f"step-{call['number']}-0.npz")
            if not path or not os.path.exists(path):
                return
            theirs = read_arrays(path)
            for name, variable in self.variables.items():
                value = theirs.get(name)
                if value is not None and tf.TensorShape(value.shape) == variable.shape:
                    fed = variable.initializer.inputs[1]
                    session.run(
                        variable.initializer,
                        {fed: value.astype(fed.dtype.base_dtype.as_numpy_dtype)},
                    )

        def before_run(self, run_context: Any) -> Any:
            fetches = {"loss": self.loss}
            if recorder.probe == [call["number"], self.reached + 1]:
                fetches["ops"] = self.outputs
            return v1.train.SessionRunArgs(fetches)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            session = run_context.session
            self.reached = int(session.run(self.step))
            call["steps"].append(self.reached)
            call["losses"].append(float(np.mean(run_values.results["loss"])))
            if "ops" in run_values.results:
                self._keep_ops(run_values.results["ops"])
            if recorder.bytes_left > 0:
                self._keep(session, self.reached)

        def _keep(self, session: Any, step: int) -> None:
            values = session.run(self.values)
            recorder.bytes_left -= sum(np.asarray(value).nbytes for value in values.values())
            name = recorder.write(f"step-{call['number']}-{step}.npz", values)
            call["values"][str(step)] = name

        def _keep_ops(self, values: Sequence[Any]) -> None:
            names = [each.name.removesuffix(":0") for each in self.outputs]
            kept = {name: np.ravel(value)[:_MOST_ELEMENTS] for name, value in zip(names, values)}
            call["ops"] = recorder.write(f"ops-{call['number']}.npz", kept)
            call["op_types"] = [each.op.type for each in self.outputs]

    return StepHook()


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


def _outputs_of_training(graph: Any, loss: Any) -> list[Any]:
    """Returns the outputs of a step's ops, in the order of the program."""
    keys = v1.GraphKeys
    updates = graph.get_collection(keys.TRAIN_OP) + graph.get_collection(keys.UPDATE_OPS)
    needed = _ancestors([loss, *updates])
    return [
        output
        for op in graph.get_operations()
        if op in needed and graph.is_fetchable(op)
        for output in op.outputs
        # References and resources have no values.
        if output.dtype == output.dtype.base_dtype and output.dtype not in (tf.resource, tf.variant)
    ]


def _unheld(graph: Any, *, emulated: bool) -> Iterator[str]:
    """Finds the parts that differ from run to run on any side."""
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
    """Returns a side's initial values; for random ones, enough draws to compare distributions."""
    first: dict[str, Any] = {}
    for name, tensor in initial.items():
        with contextlib.suppress(tf.errors.OpError):
            first[name] = np.asarray(session.run(tensor))
    drawn = {name: [value] for name, value in first.items()}
    again = {
        name: initial[name]
        for name, value in first.items()
        if value.dtype.kind == "f" and value.size > 0
    }
    for _ in range(100):
        again = {
            name: each for name, each in again.items() if sum(map(np.size, drawn[name])) < _DRAWN
        }
        for name, value in session.run(again).items():
            if np.array_equal(value, drawn[name][-1]):
                del again[name]
            else:
                drawn[name].append(np.asarray(value))
        if not again:
            break
    return {
        name: values[0] if len(values) == 1 else np.stack(values) for name, values in drawn.items()
    }


def _tags(folder: str) -> list[str]:
    """Lists the tags of a model's summaries with their folders, except rates, which depend on the clock."""
    tags = set()
    for where, _, files in os.walk(folder):
        for file in files:
            if "tfevents" in file:
                for event in v1.train.summary_iterator(os.path.join(where, file)):
                    tags |= {
                        f"{os.path.relpath(where, folder)}: {each.tag}"
                        for each in event.summary.value
                        if not each.tag.endswith("/sec")
                    }
    return sorted(tags)


def read_arrays(path: str) -> dict[str, np.ndarray]:
    """Reads the arrays that `Recorder.write` wrote."""
    with np.load(path) as file:
        return {str(name): file[f"a{number}"] for number, name in enumerate(file["names"])}


def _stacked(rows: Sequence[Any]) -> np.ndarray:
    """Stacks rows that may differ in length."""
    arrays = [np.asarray(row) for row in rows]
    same = len({array.shape for array in arrays}) == 1
    return np.stack(arrays) if same else np.concatenate([np.ravel(array) for array in arrays])


def _plain(value: np.ndarray) -> np.ndarray:
    if value.dtype.kind == "V" or value.dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        return value.astype(np.float32)
    return value.astype(bytes) if value.dtype.kind == "O" else value


def _eps(dtype: Any) -> float:
    if dtype.name == "bfloat16":
        return 2.0**-7
    return float(np.finfo(dtype).eps) if dtype.kind in "fc" else 0.0


def _load(name: str) -> Any:
    """Loads a module next to this one."""
    spec = importlib.util.spec_from_file_location(name, os.path.join(_HERE, f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
