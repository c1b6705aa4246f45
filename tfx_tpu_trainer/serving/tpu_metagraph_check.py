"""Checks the metagraph for TPU hosts as far as a machine without a TPU can."""

from __future__ import annotations

from tfx_tpu_trainer.estimator.export.tags import TPU_TAGS
from tfx_tpu_trainer.serving.check_report import Finding
from tfx_tpu_trainer.serving.fresh_process import FreshProcessError, run_fresh
from tfx_tpu_trainer.serving.op_placement import OpPlacement

_SHOWN = 5


def check_loads(path: str, *, timeout_seconds: float) -> Finding:
    """Loads the metagraph in a fresh process, up to running it.

    Args:
        path: The SavedModel.
        timeout_seconds: Seconds after which the process is killed.
    """
    try:
        run_fresh(
            "tfx_tpu_trainer.serving.load_graph",
            [path, ",".join(TPU_TAGS)],
            timeout_seconds=timeout_seconds,
        )
    except FreshProcessError as error:
        return Finding("failed", f"the metagraph can't be loaded: {error}")
    return Finding("passed", "its graph and its signatures; running it takes a TPU")


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
            "nothing of it runs on the TPU; call tf.compat.v1.tpu.rewrite in model_fn, or export "
            "with export_to_tpu=False",
        )
    outside = (*placement.beside, *placement.after)
    if whole_model and outside:
        return Finding(
            "failed",
            f"part of the model is left on the host: {_listed(outside)}; only what "
            "outside_compilation asks for may be there",
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
