"""Checks an exported model before it is pushed, each metagraph in a fresh process; writes the report."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import json
import os
import time
import typing
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer._support.messages import in_one_line, printable
from tfx_tpu_trainer._support.whole_files import write_whole
from tfx_tpu_trainer.estimator.extending import HOST_TAGS, TPU_TAGS
from tfx_tpu_trainer.serving._comparison import Finding, Outcome, compare
from tfx_tpu_trainer.serving._inspect import OpPlacement, place_ops
from tfx_tpu_trainer.serving._loading import (
    FreshProcess,
    Latency,
    Loaded,
    Sample,
    load_fresh,
)
from tfx_tpu_trainer.serving._saved_model_file import meta_graph_with, read_saved_model

CHECK_FILE = "serving_check.json"
"""Name of the report, at the root of a Model artifact."""

ALIKE = "serve, tpu: answers as serve does"
"""Name of the check that compares the two metagraphs."""

_OUTCOMES = typing.get_args(Outcome)

RELATIVE_TOLERANCE = 1e-6
TIMEOUT_SECONDS = 300.0

_SHOWN = 5


class ServingCheckError(RuntimeError):
    """An exported model that must not be pushed."""


@dataclasses.dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        name: Its name, for example "serve: answers as the estimator predicts".
        outcome: "passed", "failed", or "not run" if it could not be checked.
        detail: The result in one line; the reason if it has not passed.
        seconds: Its duration.
    """

    name: str
    outcome: Outcome
    detail: str
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class ServingCheck:
    """All checks of a model.

    Attributes:
        checks: The checks, in the order in which they were made. Later kinds of checks (compiling
            for a TPU) are further entries.
        latencies: The answer times of its `serve` metagraph; empty if they were not measured.
    """

    checks: tuple[Check, ...]
    latencies: tuple[Latency, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not self.failures

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.outcome == "failed")

    def summary(self) -> str:
        """Returns one line: the failures, or that there is none."""
        if self.failures:
            said = "; ".join(f"{check.name}: {check.detail}" for check in self.failures)
        else:
            said = "; ".join(f"{check.name}: {check.outcome}" for check in self.checks)
        # Tensor names and ops' messages come from the model.
        return printable(said)

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON values."""
        return {
            "passed": self.passed,
            "checks": [dataclasses.asdict(check) for check in self.checks],
            "latencies": [dataclasses.asdict(latency) for latency in self.latencies],
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ServingCheck:
        """Restores the report that `to_json` wrote."""
        return cls(
            tuple(Check(**check) for check in values["checks"]),
            # Reports of the first versions have no latencies.
            tuple(Latency(**latency) for latency in values.get("latencies", ())),
        )


def write_serving_check(model_uri: str, report: ServingCheck) -> str:
    """Writes a report next to the model, whole or not at all.

    Args:
        model_uri: Root of the Model artifact.
        report: The report.

    Returns:
        The file's path.
    """
    path = os.path.join(model_uri, CHECK_FILE)
    write_whole(path, json.dumps(report.to_json(), indent=2) + "\n")
    return path


def read_serving_check(model_uri: str) -> ServingCheck | None:
    """Reads the report of a Model artifact.

    Args:
        model_uri: Root of the Model artifact.

    Returns:
        The report; `None` if there is none.

    Raises:
        ValueError: If the file is not a report of a serving check.
    """
    path = os.path.join(model_uri, CHECK_FILE)
    if not tf.io.gfile.exists(path):
        return None
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            report = ServingCheck.from_json(json.loads(file.read()))
    except (ValueError, KeyError, TypeError, RecursionError, tf.errors.OpError) as error:
        raise _no_report(path, in_one_line(error)) from error
    for check in report.checks:
        texts = (check.name, check.outcome, check.detail)
        if not all(isinstance(text, str) for text in texts) or check.outcome not in _OUTCOMES:
            raise _no_report(path, f"a check is {check}")
    return report


def _no_report(path: str, reason: str) -> ValueError:
    return ValueError(
        f"{path} is not a report of a serving check ({reason}): remove it, or let TpuTrainer write "
        "it again."
    )


_Begun = concurrent.futures.Future[Check]


def check_saved_model(
    path: str | bytes | os.PathLike[str],
    *,
    sample: Sample | Callable[[], Sample | str] | None,
    no_sample_because: str = "no rows were given",
    whole_model_on_tpu: bool = True,
    relative_tolerance: float = RELATIVE_TOLERANCE,
    timeout_seconds: float = TIMEOUT_SECONDS,
    process: FreshProcess | None = None,
    further_checks: Mapping[str, Callable[[], Finding]] | None = None,
) -> ServingCheck:
    """Checks a SavedModel as far as possible without a server and without a TPU.

    The `serve` metagraph is loaded in a fresh process and answers the sample, and the answers are compared with the
    sample's predictions. The `serve`, `tpu` metagraph is loaded there, too, answers as far as a CPU can run it, is
    compared with `serve`, and is then examined op by op.

    Examples:
        >>> from tfx_tpu_trainer.serving import check_saved_model
        >>> import tensorflow as tf
        >>> class Double(tf.Module):
        ...     @tf.function(input_signature=[tf.TensorSpec([None], name="x")])
        ...     def __call__(self, x):
        ...         return {"doubled": 2 * x}
        >>> tf.saved_model.save(Double(), "double")
        >>> report = check_saved_model("double", sample=None)
        >>> report.passed, len(report.checks)
        (True, 1)

    Args:
        path: The SavedModel.
        sample: Rows to serve; `None` to only load the `serve` metagraph; or a function that returns rows, or a line
            with the reason why there are none. The function is called in the caller's thread while checks that need no
            rows run.
        no_sample_because: The reason in the report if `sample` is `None`.
        whole_model_on_tpu: Whether the exporter has put all of the model on the TPU (version 1), so only
            `outside_compilation` may keep a part of it outside. With version 2 the model decides.
        relative_tolerance: The largest difference between an answer and the prediction, relative to the largest
            absolute value of that output over all rows.
        timeout_seconds: Seconds for a process.
        process: A process of `LOADING_PROCESS` that has been started already, since its imports take most of the time.
            Defaults to `None`: one is started here.
        further_checks: Name -> check of the `serve`, `tpu` metagraph that needs other packages, such as a compiler. Not
            called without such a metagraph. Defaults to none.

    Returns:
        The report. A broken model is reported, not raised.

    Raises:
        FileNotFoundError: If there is no SavedModel.
        ValueError: If the file is not a SavedModel.
    """
    path = os.fsdecode(path)
    saved_model = read_saved_model(path)
    on_host = meta_graph_with(saved_model, HOST_TAGS)
    on_tpu = meta_graph_with(saved_model, TPU_TAGS)
    # Checks without rows begin first, since `sample` may predict for a while. The order of the report does not depend
    # on which ends first.
    with concurrent.futures.ThreadPoolExecutor() as pool:

        def begin(checks: Mapping[str, Callable[[], Finding]]) -> list[_Begun]:
            return [pool.submit(_timed, name, check) for name, check in checks.items()]

        without_rows: dict[str, Callable[[], Finding]] = {}
        if on_tpu is not None:
            without_rows["serve, tpu: all of the model on the TPU"] = lambda: check_placement(
                place_ops(on_tpu), whole_model=whole_model_on_tpu
            )
            without_rows.update(further_checks or {})
        begun = begin(without_rows)
        given: Sample | str = (
            sample() if callable(sample) else no_sample_because if sample is None else sample
        )
        loading = pool.submit(
            load_fresh,
            path,
            inputs=None if on_host is None else {} if isinstance(given, str) else given.inputs,
            tags=() if on_tpu is None else TPU_TAGS,
            both=None if on_host is None or on_tpu is None else _of_both(given),
            timeout_seconds=timeout_seconds,
            process=process,
        )
        loaded: dict[str, Callable[[], Finding]] = {}
        if on_host is not None:
            loaded["serve: answers as the estimator predicts"] = functools.partial(
                _check_answers, loading, given, relative_tolerance
            )
        if on_tpu is not None:
            loaded["serve, tpu: loads"] = functools.partial(_check_loads, loading)
        if on_host is not None and on_tpu is not None:
            loaded[ALIKE] = functools.partial(_check_alike, loading, given)
        checks = tuple(check.result() for check in [*begin(loaded), *begun])
        return ServingCheck(checks, loading.result().latencies)


def _check_answers(
    loading: concurrent.futures.Future[Loaded], sample: Sample | str, tolerance: float
) -> Finding:
    loaded = loading.result()
    if loaded.answers is None:
        return Finding("failed", f"the metagraph can't be loaded and run: {loaded.no_answers}")
    if isinstance(sample, str):
        return Finding("not run", f"it can be loaded; {sample}")
    return compare(loaded.answers, sample.predictions, tolerance)


def _check_loads(loading: concurrent.futures.Future[Loaded]) -> Finding:
    loaded = loading.result()
    if loaded.no_graph is not None:
        return Finding("failed", f"the metagraph can't be loaded: {loaded.no_graph}")
    return Finding("passed", "its graph and its signatures")


def _of_both(sample: Sample | str) -> Mapping[str, Mapping[str, np.ndarray]] | None:
    return None if isinstance(sample, str) else {**sample.inputs, **sample.further_inputs}


def _check_alike(loading: concurrent.futures.Future[Loaded], sample: Sample | str) -> Finding:
    loaded = loading.result()
    if isinstance(sample, str):
        return Finding("not run", sample)
    return loaded.alike or Finding("not run", "one of the two metagraphs can't be loaded and run")


def _timed(name: str, check: Callable[[], Finding]) -> Check:
    start = time.monotonic()
    outcome, detail = check()
    return Check(name, outcome, detail, round(time.monotonic() - start, 3))


def check_placement(placement: OpPlacement, *, whole_model: bool) -> Finding:
    """Checks the places of a metagraph's ops.

    Args:
        placement: The places of its ops.
        whole_model: Whether the exporter has put all of the model on the TPU (version 1), so only
            `outside_compilation` may keep a part of it outside. With version 2 the model decides.
    """
    if placement.refused:
        return Finding(
            "failed",
            f"no TPU can run {_listed(placement.refused)}; compute it before the model, or call it "
            "through tf.compat.v1.tpu.outside_compilation",
        )
    if not placement.num_on_tpu:
        return Finding(
            "failed",
            "no part of it runs on the TPU; call tf.compat.v1.tpu.rewrite in model_fn, or export "
            "with export_to_tpu=False",
        )
    outside = (*placement.beside, *placement.after)
    if whole_model and outside:
        return Finding(
            "failed",
            f"part of the model is left on the host: {_listed(outside)}; only outside_compilation "
            "may put ops there",
        )
    kept = sum(placement.outside_compilation.values())
    return Finding(
        "passed",
        f"{placement.num_on_tpu} ops on the TPU, {kept} outside of the compilation, "
        f"{sum(placement.before.values())} before it, {len(outside)} after it or next to it",
    )


def _listed(nodes: tuple[str, ...]) -> str:
    more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
    return f"{'; '.join(nodes[:_SHOWN])}{more}"
