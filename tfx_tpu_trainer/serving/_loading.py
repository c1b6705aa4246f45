"""Loads an exported model: here, to call its signatures, or in a fresh process, as a server would.

The fresh process runs this module's `main` with MODEL REQUESTS ANSWERS TAGS BOTH FINDING. REQUESTS is a TFRecord file
of PredictionLogs (a warm-up file is one), which the `serve` metagraph answers; ANSWERS becomes a file of
PredictResponses in the same order, and ANSWERS.json has the answer times. TAGS name another metagraph, whose graph is
loaded without running it, which makes TensorFlow check every node with its op, attributes, types, shapes and called
functions. BOTH is a TFRecord file of requests that both metagraphs answer, the one for TPU hosts as far as a CPU can
run it. FINDING is an empty file until then, and afterwards the comparison in JSON. REQUESTS, TAGS or BOTH is empty to
skip that part.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

from tfx_tpu_trainer._support.imports import without_notice
from tfx_tpu_trainer._support.messages import PACKAGE_FOLDER
from tfx_tpu_trainer._support.processes import SAFE_PATH
from tfx_tpu_trainer._support.waiting import said_while_waiting
from tfx_tpu_trainer._support.whole_files import file_written_whole, write_whole
from tfx_tpu_trainer.estimator.extending import tensor_names
from tfx_tpu_trainer.serving._both_graphs import compare_graphs
from tfx_tpu_trainer.serving._comparison import Answers, Finding
from tfx_tpu_trainer.serving._inspect import MetaGraphDescription, describe_meta_graph
from tfx_tpu_trainer.serving._requests import predict_log, read_records, write_records
from tfx_tpu_trainer.serving._saved_model_file import (
    check_variables,
    meta_graph_with,
    read_saved_model,
)

v1 = tf.compat.v1

# Packages whose import registers ops. A server has them built in; a fresh process must import them.
_OP_LIBRARIES = ("struct2tensor", "tensorflow_decision_forests", "tensorflow_text")


# TensorFlow imports these if installed, and works without them; they take a quarter of its import time. A server has
# none of them, but an op library may need them.
_SPARED = ("googleapiclient", "keras", "pandas", "tf_keras")

# The module is imported before its arguments arrive. If none come, the other process has ended, or needs nothing. An
# entry of None makes Python treat a module as missing.
_RUN_MAIN = f"""{SAFE_PATH}import importlib, json
spared = sys.argv[2:]
sys.modules.update(dict.fromkeys(spared))
module = importlib.import_module(sys.argv[1])
for name in spared:
    del sys.modules[name]
job = json.loads(sys.stdin.read() or "null")
if job:
    for library in job["libraries"]:
        importlib.import_module(library)
    module.main(*job["arguments"])
"""


class FreshProcessError(RuntimeError):
    """A fresh process that failed; the message is one line."""


class FreshProcess:
    """A process that runs a module of this package, and imports it while this one does something else.

    It waits for its arguments, and ends by itself if this process ends first.
    """

    def __init__(self, module: str) -> None:
        """Starts the process.

        Args:
            module: Full name of a module with a function `main` of strings.
        """
        self._module = module
        self._process = subprocess.Popen(
            [sys.executable, "-c", _RUN_MAIN, module, *(() if _libraries() else _SPARED)],
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def __enter__(self) -> FreshProcess:
        return self

    def __exit__(self, *raised: object) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stderr):
            if stream is not None:
                stream.close()

    def run(self, given: Sequence[str], *, timeout_seconds: float) -> None:
        """Calls the module's `main` and waits for its end; once only.

        Packages that register ops and are imported in this process are imported there first.

        Args:
            given: The arguments of `main`.
            timeout_seconds: Seconds after which it is killed.

        Raises:
            FreshProcessError: If it has failed, was killed, or has taken too long.
        """
        job = json.dumps({"libraries": _libraries(), "arguments": list(given)})
        try:
            with said_while_waiting(
                f"{self._module} in a separate process, which loads the exported model",
                change=f"It is stopped after {timeout_seconds:g} s (serving_check_timeout).",
            ):
                _, errors = self._process.communicate(job.encode(), timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise FreshProcessError(
                f"it did not finish within {timeout_seconds:g} s and was stopped"
            ) from None
        if self._process.returncode:
            raise FreshProcessError(
                _reason(self._process.returncode, errors.decode(errors="replace"))
            )


def _libraries() -> list[str]:
    return [name for name in _OP_LIBRARIES if name in sys.modules]


def _environment() -> dict[str, str]:
    path = [str(PACKAGE_FOLDER.parent), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2"),
        # The check is about the file on the host, and needs none of the trainer's devices.
        "CUDA_VISIBLE_DEVICES": "",
    }


def _reason(code: int, errors: str) -> str:
    if code < 0:
        return f"its process was killed by {signal.Signals(-code).name}"
    # The last line without indentation is the exception's first line.
    lines = [line for line in errors.splitlines() if line.strip()]
    raised = [line for line in lines if line.split(":")[0].split(".")[-1].endswith("Error")]
    return (raised or lines or [f"its process ended with exit code {code}"])[-1].strip()


def load_serving(
    path: str | bytes | os.PathLike[str], tags: str | Sequence[str] = ("serve",)
) -> Any:
    """Loads a model that this package exported, or any other SavedModel, for calling its signatures.

    `tf.saved_model.load(path)` alone rejects models with more than one metagraph, such as those for CPU and TPU.

    Examples:
        >>> from tfx_tpu_trainer.serving import load_serving
        >>> import tensorflow as tf
        >>> class Double(tf.Module):
        ...     @tf.function(input_signature=[tf.TensorSpec([None], name="x")])
        ...     def __call__(self, x):
        ...         return {"doubled": 2 * x}
        >>> tf.saved_model.save(Double(), "double")
        >>> served = load_serving("double")
        >>> print(served.signatures["serving_default"](x=tf.constant([1.0, 2.0]))["doubled"].numpy())
        [2. 4.]

    Args:
        path: folder with `saved_model.pb`; a PushedModel's uri, a Model's `Format-Serving`, or the result of
            `export_saved_model`.
        tags: all tags of the metagraph. `("serve",)` runs anywhere, `("serve", "tpu")` on a TPU host.

    Returns:
        The result of `tf.saved_model.load`: `.signatures[name](**tensors)` returns a dict of tensors.

    Raises:
        FileNotFoundError: If the folder does not exist or has no SavedModel.
        ValueError: If no metagraph has exactly these tags (the message lists the existing ones), it needs a TPU and
            this machine has none, or variables are missing.
    """
    path = os.fsdecode(path)
    wanted = {tags} if isinstance(tags, str) else set(tags)
    saved_model = read_saved_model(path)
    meta_graphs = [describe_meta_graph(each) for each in saved_model.meta_graphs]
    for meta_graph in meta_graphs:
        if set(meta_graph.tags) == wanted:
            _check_device(path, meta_graph)
            check_variables(path, saved_model)
            return with_direct_calls(tf.saved_model.load(path, tags=sorted(wanted)))
    there = " and ".join(str(list(meta_graph.tags)) for meta_graph in meta_graphs)
    raise ValueError(
        f"The SavedModel at {path} has no metagraph with the tags {sorted(wanted)}: it has {there}. "
        "Give all the tags of one of them."
    )


def _check_device(path: str, meta_graph: MetaGraphDescription) -> None:
    if meta_graph.has_tpu_ops and not tf.config.list_logical_devices("TPU"):
        raise ValueError(
            f"The metagraph {list(meta_graph.tags)} of {path} runs only on a TPU host (it contains "
            f"{', '.join(meta_graph.tpu_ops)}), and this machine has no TPU: on this machine, load "
            'it with tags=("serve",).'
        )


def with_direct_calls(loaded: Any) -> Any:
    """Makes the signatures of a model of version 1 as fast to call as those of version 2.

    For these signatures, TensorFlow's loader returns functions that try another calling convention first in each call,
    and format an error message with all inputs before they use the right one. That takes several times as long as a
    small model.
    """
    # Documented by tf.saved_model.load: only objects loaded from a plain graph have it.
    if hasattr(loaded, "prune"):
        loaded.signatures = {
            name: _direct(signature, loaded) for name, signature in loaded.signatures.items()
        }
    return loaded


def _direct(signature: Any, loaded: Any) -> Any:
    _, inputs = signature.structured_input_signature

    @tf.function(autograph=False)
    def call(**tensors: Any) -> Any:
        return signature(**tensors)

    try:
        function = call.get_concrete_function(**inputs)
    # TypeError: an input is called `self`. ValueError: as a function's parameters, `a b` and `a-b` have the same name.
    # A server accepts them, so Python's limit must not reject the model's other signatures.
    except (TypeError, ValueError):
        function = signature
    # Callers may keep only a signature, but variables live as long as the loaded object.
    function.loaded = loaded
    return function


LOADING_PROCESS = __name__
"""The module to run in the `FreshProcess` passed to `load_fresh`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """Rows whose predictions are known.

    Attributes:
        inputs: Signature name -> input name -> array, with the same rows for each signature.
        predictions: Output name -> array, the estimator's predictions for these rows.
        further_inputs: The same rows for signatures whose outputs only share names with predictions; only the answers
            of both metagraphs are compared.
    """

    inputs: Mapping[str, Mapping[str, np.ndarray]]
    predictions: Mapping[str, np.ndarray]
    further_inputs: Mapping[str, Mapping[str, np.ndarray]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Latency:
    """How fast a signature answered the check's request, in a session of the checking process."""

    signature: str
    rows: int  # rows of the request
    first_seconds: float  # duration of the first answer, which may compile and allocate
    median_seconds: float  # median duration of the following answers
    repeats: int  # number of the following answers


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loaded:
    """The results of loading a model in a fresh process."""

    # The `serve` metagraph's answers; `None` if it failed, or was not run.
    answers: Answers | None = None
    no_answers: str | None = None  # why it could not be loaded and run; `None` if it could
    # Why the other metagraph's graph could not be loaded; `None` if it could.
    no_graph: str | None = None
    # Whether both metagraphs give the same answers; `None` if they were not compared.
    alike: Finding | None = None
    latencies: tuple[Latency, ...] = ()  # its answer times


def load_fresh(
    path: str,
    *,
    inputs: Mapping[str, Mapping[str, np.ndarray]] | None,
    tags: Sequence[str] = (),
    both: Mapping[str, Mapping[str, np.ndarray]] | None = None,
    timeout_seconds: float,
    process: FreshProcess | None = None,
) -> Loaded:
    """Loads a model's metagraphs in a fresh process, serves rows by the `serve` metagraph, and compares `both`.

    One process does both, since importing TensorFlow takes most of its time. If it ends before the second metagraph,
    another one loads that.
    """
    with tempfile.TemporaryDirectory(prefix="serving-check-") as folder:
        requests, answered, of_both, finding = (
            os.path.join(folder, name) for name in ("requests", "answers", "both", "finding")
        )

        def run(given: list[str], started: FreshProcess | None = None) -> str | None:
            try:
                with started or FreshProcess(LOADING_PROCESS) as running:
                    running.run(given, timeout_seconds=timeout_seconds)
            except FreshProcessError as error:
                return str(error)
            return None

        for file, asked in ((requests, inputs), (of_both, both)):
            if asked is not None:
                write_records(
                    file,
                    [predict_log(of, signature_name=k, model_name="") for k, of in asked.items()],
                )
        given = [
            path,
            "" if inputs is None else requests,
            answered,
            ",".join(tags),
            "" if both is None else of_both,
            finding,
        ]
        problem = run(given, process)
        if inputs is None:
            return Loaded(no_graph=problem)
        if not os.path.exists(answered):
            alone = run([path, "", "", ",".join(tags), "", ""]) if tags else None
            return Loaded(no_answers=problem, no_graph=alone)
        alike = None
        if os.path.exists(finding):
            alike = Finding(*(_read_json(finding) or ("failed", f"it can't be run: {problem}")))
            problem = None
        responses = read_records(answered, predict_pb2.PredictResponse)
        took = _read_json(f"{answered}.json")
    assert inputs is not None
    answers = {
        name: {key: tf.make_ndarray(tensor) for key, tensor in response.outputs.items()}
        for name, response in zip(inputs, responses, strict=True)
    }
    latencies = tuple(
        Latency(
            signature=name,
            rows=max((len(value) for value in inputs[name].values() if np.ndim(value)), default=1),
            first_seconds=seconds["first"],
            median_seconds=seconds["median"],
            repeats=int(seconds["repeats"]),
        )
        for name, seconds in took.items()
    )
    return Loaded(answers=answers, no_graph=problem, alike=alike, latencies=latencies)


def _read_json(path: str) -> Any:
    # A process that ended after its answers may have left an empty file.
    if not os.path.exists(path) or not os.path.getsize(path):
        return {}
    with open(path, encoding="utf-8") as file:
        return json.load(file)


# Repetitions, or seconds of them, to measure an answer after the warm-up.
_REPEATS, _REPEAT_SECONDS = 10, 0.25


def answers(
    path: str, logs: list[Any], took: dict[str, dict[str, float]]
) -> Iterator[predict_pb2.PredictResponse]:
    """Answers requests by the `serve` metagraph in a session, as TensorFlow Serving does."""
    # A generator that is not finished keeps its contexts open, so no graph may be the default at a yield.
    with contextlib.closing(v1.Session(graph=tf.Graph())) as session:
        load = without_notice(v1.saved_model.load)
        with session.graph.as_default():
            meta_graph = load(session, [tf.saved_model.SERVING], path)
        for log in logs:
            request = log.predict_log.request
            name = request.model_spec.signature_name
            signature = meta_graph.signature_def[name]
            answer = session.make_callable(
                {key: info.name for key, info in signature.outputs.items()},
                [signature.inputs[key].name for key in request.inputs],
            )
            given = [tf.make_ndarray(tensor) for tensor in request.inputs.values()]
            fetched, took[name] = timed(lambda: answer(*given))  # noqa: B023
            response = predict_pb2.PredictResponse(model_spec=request.model_spec)
            for key, value in fetched.items():
                response.outputs[key].CopyFrom(tf.make_tensor_proto(value))
            yield response


def timed(answer: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """Answers a request repeatedly; returns the first answer and the durations."""
    begun = time.perf_counter()
    answered = answer()
    seconds = [time.perf_counter() - begun]
    while len(seconds) == 1 or (len(seconds) <= _REPEATS and sum(seconds[1:]) < _REPEAT_SECONDS):
        begun = time.perf_counter()
        answer()
        seconds.append(time.perf_counter() - begun)
    again = seconds[1:]
    return answered, {
        "first": seconds[0],
        "median": statistics.median(again),
        "repeats": len(again),
    }


def load_graph(path: str, tags: list[str]) -> None:
    """Loads a metagraph's graph, and finds its signatures' tensors."""
    meta_graph = meta_graph_with(read_saved_model(path), tags)
    if meta_graph is None:
        raise ValueError(f"{path} has no metagraph with the tags {tags}")
    with tf.Graph().as_default() as graph:
        v1.train.import_meta_graph(meta_graph)
        for signature in meta_graph.signature_def.values():
            for info in (*signature.inputs.values(), *signature.outputs.values()):
                for name in tensor_names(info):
                    graph.get_tensor_by_name(name)


def main(path: str, requests: str, answered: str, tags: str, both: str, finding: str) -> None:
    """Runs in the fresh process; the module's docstring describes the arguments."""
    if requests:
        logs = read_records(requests, prediction_log_pb2.PredictionLog)
        took: dict[str, dict[str, float]] = {}
        with file_written_whole(answered) as written:
            write_records(written, answers(path, logs, took))
        write_whole(f"{answered}.json", json.dumps(took))
    if tags:
        load_graph(path, tags.split(","))
    if both:
        write_whole(finding, "")
        asked = [
            log.predict_log.request for log in read_records(both, prediction_log_pb2.PredictionLog)
        ]
        inputs = {
            request.model_spec.signature_name: {
                key: tf.make_ndarray(tensor) for key, tensor in request.inputs.items()
            }
            for request in asked
        }
        write_whole(finding, json.dumps(compare_graphs(path, inputs)))
