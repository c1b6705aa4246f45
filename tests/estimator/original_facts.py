"""What a TPUEstimator leaves behind, as JSON values: read from the original's and from ours.

As a program it records the original's, as `original_runs.json`. That needs TensorFlow 2.15, the last with an estimator;
run it by hand from the repository's root whenever this file or `linear_model.py` changes:

    uv venv --python 3.10 /tmp/original
    uv pip install --python /tmp/original/bin/python tensorflow==2.15.1
    PYTHONPATH=. /tmp/original/bin/python -m tests.estimator.original_facts
"""

import functools
import glob
import json
import os
import pathlib
import re
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf

from tests.estimator import linear_model
from tests.estimator._engine.event_files import read_values

TF_CONFIGS: dict[str, dict[str, Any]] = {
    "none": {},
    "local": {"session_master": "grpc://a:1", "eval_session_master": "grpc://b:2"},
    "local_task": {"task": {"type": "worker", "index": 0}, "service": {"key": [1]}},
    "local_chief": {"task": {"type": "chief", "index": 0}},
    "local_worker_1": {"task": {"type": "worker", "index": 1}},
    "service_no_dict": {"service": "name"},
    "model_dir": {"model_dir": "folder"},
    "model_dir_empty": {"model_dir": ""},
}
_CLUSTER = {
    "chief": ["h0:1"],
    "worker": ["h1:1", "h2:1"],
    "ps": ["h3:1", "h4:1"],
    "extra": ["h5:1"],
}
_TASKS = {
    "chief": ("chief", 0),
    "worker_0": ("worker", 0),
    "worker_1": ("worker", 1),
    "ps_1": ("ps", 1),
    "extra": ("extra", 0),
    "evaluator": ("evaluator", 0),
    "evaluator_3": ("evaluator", 3),
    "worker_2": ("worker", 2),
    "negative": ("worker", -1),
    "unknown": ("boss", 0),
    "no_index": ("worker", None),
    "no_type": (None, 0),
}


def _with_task(cluster: dict[str, list[str]], task: tuple[Any, Any], **more: Any) -> dict[str, Any]:
    names = dict(zip(("type", "index"), task))
    return {"cluster": cluster, "task": {k: v for k, v in names.items() if v is not None}, **more}


for _name, _task in _TASKS.items():
    TF_CONFIGS[f"cluster_{_name}"] = _with_task(_CLUSTER, _task)
    _legacy = {("master" if job == "chief" else job): _CLUSTER[job] for job in _CLUSTER}
    _task = tuple("master" if part == "chief" else part for part in _task)
    TF_CONFIGS[f"legacy_{_name}"] = _with_task(_legacy, _task)
TF_CONFIGS |= {
    "one_node": _with_task({"chief": ["h0:1"]}, ("chief", 0)),
    "one_node_master": _with_task({"master": ["h0:1"]}, ("master", 0)),
    "masters_given": _with_task(
        _CLUSTER, ("worker", 1), session_master="s", eval_session_master="e"
    ),
    "evaluator_masters_given": _with_task(
        _CLUSTER, ("evaluator", 0), session_master="s", eval_session_master="e"
    ),
    "legacy_masters_given": _with_task(
        {"master": ["h0:1"], "ps": ["h1:1"]},
        ("master", 0),
        session_master="s",
        eval_session_master="e",
    ),
    "no_chief": _with_task({"worker": ["h0:1"]}, ("worker", 0)),
    "two_chiefs": _with_task({"chief": ["h0:1", "h1:1"]}, ("chief", 0)),
    "chief_and_master": _with_task({"chief": ["h0:1"], "master": ["h1:1"]}, ("chief", 0)),
}

_PLACE = (
    "task_type",
    "task_id",
    "master",
    "evaluation_master",
    "is_chief",
    "num_ps_replicas",
    "num_worker_replicas",
    "global_id_in_cluster",
    "service",
    "model_dir",
)


def place_facts(run_config: Any) -> dict[str, Any]:
    """What a RunConfig class reads from the TF_CONFIG of the moment, or the error's type."""
    try:
        config = run_config()
    except (TypeError, ValueError) as error:
        return {"error": type(error).__name__}
    facts = {name: getattr(config, name) for name in _PLACE}
    facts["cluster"] = config.cluster_spec.as_dict()
    session_config = config.session_config
    facts["device_filters"] = session_config and list(session_config.device_filters)
    return facts


def run_facts(tpu: Any, optimizer: str, folder: str) -> dict[str, Any]:
    """Trains 10 steps on the host, evaluates and predicts, and reads what came of it.

    Args:
        tpu: The original's `tf.compat.v1.estimator.tpu`, or ours.
        optimizer: A key of `linear_model.OPTIMIZERS`.
        folder: Model folder.
    """
    estimator = tpu.TPUEstimator(
        model_fn=linear_model.model_fn_for(tpu, optimizer),
        config=tpu.RunConfig(
            model_dir=folder,
            save_checkpoints_steps=4,
            save_summary_steps=1,
            keep_checkpoint_max=0,
            log_step_count_steps=3,
            tpu_config=tpu.TPUConfig(iterations_per_loop=2),
        ),
        use_tpu=False,
        train_batch_size=6,
        eval_batch_size=8,
        predict_batch_size=8,
    )
    estimator.train(linear_model.endless_input_fn, max_steps=10)
    metrics = estimator.evaluate(linear_model.input_fn)
    predictions = estimator.predict(
        functools.partial(linear_model.input_fn, count=11), predict_keys=["y"]
    )
    events, eval_events = read_values(folder), read_values(estimator.eval_dir())
    checkpoint = estimator.latest_checkpoint()
    index_files = glob.glob(os.path.join(folder, "model.ckpt-*.index"))
    return {
        "losses": [events["loss"][step] for step in sorted(events["loss"])],
        "steps_with_loss": sorted(events["loss"]),
        "tags": sorted(events),
        "steps_with_examples_per_second": sorted(events["examples/sec"]),
        "eval_tags": sorted(eval_events),
        "eval_steps": sorted({step for steps in eval_events.values() for step in steps}),
        "metrics": {name: np.asarray(value).item() for name, value in sorted(metrics.items())},
        "metric_types": {name: str(value.dtype) for name, value in sorted(metrics.items())},
        "predictions": [prediction["y"].item() for prediction in predictions],
        "checkpoint_steps": sorted(int(re.findall(r"\d+", path)[-1]) for path in index_files),
        "shapes": {name: list(shape) for name, shape in tf.train.list_variables(checkpoint)},
        "values": {
            name: np.asarray(estimator.get_variable_value(name)).tolist()
            for name in sorted(estimator.get_variable_names())
        },
        "files": sorted({re.sub(r"[-.]\d.*", "", name) for name in os.listdir(folder)}),
    }


RECORDING = pathlib.Path(__file__).with_name("original_runs.json")


def _record_places(tpu: Any) -> dict[str, Any]:
    places = {}
    for name, tf_config in TF_CONFIGS.items():
        os.environ["TF_CONFIG"] = json.dumps(tf_config)
        places[name] = {
            "estimator": place_facts(tf.estimator.RunConfig),
            "tpu": place_facts(tpu.RunConfig),
        }
    del os.environ["TF_CONFIG"]
    return places


def main() -> None:
    tpu = tf.compat.v1.estimator.tpu
    runs = {}
    for optimizer in linear_model.OPTIMIZERS:
        with tempfile.TemporaryDirectory() as folder:
            runs[optimizer] = run_facts(tpu, optimizer, folder)
    recording = {"tensorflow": tf.__version__, "runs": runs, "places": _record_places(tpu)}
    RECORDING.write_text(json.dumps(recording, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
