"""One task of a cluster under a strategy: `python -m tests.estimator.places.strategy.cluster_program ARGUMENTS`.

The arguments are JSON: `model_dir`; `strategy`, a key of `STRATEGIES`; `max_steps`; `batches`, how
many batches each task's input has, by task, endless where it is not named; `stop_at`, the step at
which the chief's hook asks to stop; `config`, more arguments of RunConfig. TF_CONFIG says which
task it is. What was trained stands in the model's folder, and the last line tells what this task
saw.
"""

import faulthandler
import json
import os
import signal
import sys
from typing import Any

import tensorflow as tf

from tests.estimator import linear_model
from tests.estimator.places.strategy import strategy_runs as runs
from tests.estimator.tpu import on_cores
from tfx_tpu_trainer import estimator as tfe

v1 = tf.compat.v1

STRATEGIES = {
    "multi_worker_mirrored": tf.distribute.MultiWorkerMirroredStrategy,
    "parameter_server": v1.distribute.experimental.ParameterServerStrategy,
}


class StopAt(v1.train.SessionRunHook):
    """Asks to stop, in one process only."""

    def __init__(self, step: int) -> None:
        self._step = step

    def begin(self) -> None:
        self._global_step = v1.train.get_global_step()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_context.session.run(self._global_step) >= self._step:
            run_context.request_stop()


def refusal(folder: str, strategy: tf.distribute.Strategy) -> str:
    """What an evaluation over the processes says."""
    try:
        runs.make(folder, strategy).evaluate(runs.eval_input_of(3))
    except ValueError as error:
        return str(error)
    return "nothing"


def main(arguments: dict[str, Any]) -> None:
    # Who waits too long for this task asks where it stands.
    faulthandler.register(signal.SIGUSR1)
    v1.logging.set_verbosity(v1.logging.INFO)
    # First of all, as TensorFlow wants it: it connects the tasks.
    strategy = STRATEGIES[arguments["strategy"]]()
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    name = f"{task['type']}{task['index']}"
    seen: dict[str, Any] = {"task": name, "calls": 0}

    def input_fn(input_context: tf.distribute.InputContext) -> tf.data.Dataset:
        seen["calls"] += 1
        seen["pipelines"] = input_context.num_input_pipelines
        seen["pipeline"] = input_context.input_pipeline_id
        seen["replicas"] = input_context.num_replicas_in_sync
        batches = on_cores.train_input_fn({"batch_size": runs.SHARE})
        mine = batches.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
        return mine.take(arguments.get("batches", {}).get(name, -1))

    estimator = runs.make(
        arguments["model_dir"],
        strategy,
        eval_distribute=None,
        save_checkpoints_steps=arguments.get("save", 2),
        experimental_max_worker_delay_secs=1,
        **arguments.get("config", {}),
    )
    hooks = []
    if "stop_at" in arguments and estimator.config.is_chief:
        hooks = [StopAt(arguments["stop_at"])]
    if arguments["strategy"] == "parameter_server":
        # A worker that is left over ends when the last checkpoint is there.
        hooks.append(
            tfe.experimental.make_stop_at_checkpoint_step_hook(estimator, arguments["max_steps"], 1)
        )
    tfe.train_and_evaluate(
        estimator,
        tfe.TrainSpec(input_fn, max_steps=arguments["max_steps"], hooks=hooks),
        tfe.EvalSpec(
            runs.eval_input_of(linear_model.ROWS), steps=None, start_delay_secs=0, throttle_secs=1
        ),
    )
    seen["is_chief"] = estimator.config.is_chief
    if arguments["strategy"] == "multi_worker_mirrored" and task["type"] != "evaluator":
        seen["evaluate"] = refusal(arguments["model_dir"], strategy)
    print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
