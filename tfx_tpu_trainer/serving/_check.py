"""Checks an exported model before anybody pushes it: each metagraph, loaded in a fresh process."""

from __future__ import annotations

import concurrent.futures
import functools
import os
import time
from collections.abc import Callable, Mapping

from tfx_tpu_trainer.estimator.extending import HOST_TAGS, TPU_TAGS
from tfx_tpu_trainer.serving._answers import Loaded, Sample, compare, load_fresh
from tfx_tpu_trainer.serving._check_report import Check, Finding, ServingCheck
from tfx_tpu_trainer.serving._fresh_process import FreshProcess
from tfx_tpu_trainer.serving._op_placement import OpPlacement, place_ops
from tfx_tpu_trainer.serving._saved_model_file import meta_graph_with, read_saved_model

_Begun = concurrent.futures.Future[Check]

RELATIVE_TOLERANCE = 1e-6
TIMEOUT_SECONDS = 300.0


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
    """Checks what can be checked of a SavedModel without a server and without a TPU.

    The `serve` metagraph is loaded in a fresh process, answers the sample and is compared with its
    predictions. The `serve`, `tpu` metagraph is loaded there too, up to running it, and then looked
    through op by op.

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
        sample: Rows to serve, or `None`: then the `serve` metagraph is only loaded. Or a function that
            returns them, or says in a line why there are none: it is called here, in the caller's thread,
            while what needs no rows is checked.
        no_sample_because: What the report says where `sample` is `None`.
        whole_model_on_tpu: Whether the exporter has put all of the model on the TPU (version 1), so
            that nothing of it may stand outside but by `outside_compilation`. With version 2 the
            model decides.
        relative_tolerance: How far an answer may be from the prediction, as a part of the largest
            absolute value of that output over all rows.
        timeout_seconds: Seconds for a process.
        process: A process of `LOADING_PROCESS` that has been started already, as its imports take
            most of the time. Defaults to `None`: one is started here.
        further_checks: Name -> check of the `serve`, `tpu` metagraph that takes more than this
            package knows, such as a compiler. Not called where there is no such metagraph.
            Defaults to none.

    Returns:
        The report. A broken model is reported, not raised.

    Raises:
        FileNotFoundError: There is no SavedModel.
        ValueError: The file is not a SavedModel.
    """
    path = os.fsdecode(path)
    saved_model = read_saved_model(path)
    on_host = meta_graph_with(saved_model, HOST_TAGS)
    on_tpu = meta_graph_with(saved_model, TPU_TAGS)
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
    return Finding("passed", "its graph and its signatures; running it takes a TPU")


def _timed(name: str, check: Callable[[], Finding]) -> Check:
    start = time.monotonic()
    outcome, detail = check()
    return Check(name, outcome, detail, round(time.monotonic() - start, 3))


_SHOWN = 5


def check_placement(placement: OpPlacement, *, whole_model: bool) -> Finding:
    """Goes through the metagraph op by op.

    Args:
        placement: Where its ops run.
        whole_model: Whether the exporter has put all of the model on the TPU (version 1), so that
            nothing of it may stand outside but by `outside_compilation`. With version 2 the model
            decides.
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
        f"{sum(placement.before.values())} before it, {len(outside)} after it or beside it",
    )


def _listed(nodes: tuple[str, ...]) -> str:
    more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
    return f"{'; '.join(nodes[:_SHOWN])}{more}"
