"""Clusters that count rows, one after the other.

Started by `python -m tests.estimator.places.strategy.counting_program FOLDER RUNS`.

The folder gets the model and each worker's log. The runs are JSON, a list of arguments: `max_steps`; `workers`, how
many, two where it is not said; `epochs` of the input; `die_at`, the step after which each worker kills itself;
`die_before_saving`, the step whose checkpoint the chief is killed before; `stop_at`, the step at which the second
worker is sent SIGTERM. The last line tells the exit codes of each run's workers.
"""

import json
import os
import signal
import sys
import traceback
from typing import Any

import tensorflow as tf

from tests.estimator import counting_model
from tests.free_ports import free_ports
from tfx_tpu_trainer import estimator as tfe

v1 = tf.compat.v1

WORKERS = 2
SHARE = counting_model.BATCH // WORKERS


def rows_of(worker: int, workers: int = WORKERS, epochs: int = -1) -> tf.data.Dataset:
    """A worker's part of the rows, each once in an epoch."""
    rows = tf.data.Dataset.range(counting_model.ROWS).shard(workers, worker)
    rows = rows.shuffle(5, seed=worker).repeat(epochs)
    return counting_model.with_batches(rows, {"batch_size": SHARE})


class _Hook(v1.train.SessionRunHook):
    def __init__(self, arguments: dict[str, Any], worker: int) -> None:
        self._arguments = arguments
        self._worker = worker

    def after_run(self, run_context: Any, run_values: Any) -> None:
        step = run_context.session.run(v1.train.get_global_step())
        if step == self._arguments.get("die_at"):
            os.kill(os.getpid(), signal.SIGKILL)
        if step == self._arguments.get("stop_at") and self._worker:
            os.kill(os.getpid(), signal.SIGTERM)


class _Listener(v1.train.CheckpointSaverListener):
    def __init__(self, step: int | None) -> None:
        self._step = step

    def before_save(self, session: v1.Session, global_step_value: int) -> None:
        if global_step_value == self._step:
            os.kill(os.getpid(), signal.SIGKILL)


def train(folder: str, worker: int, arguments: dict[str, Any]) -> None:
    v1.logging.set_verbosity(v1.logging.INFO)
    tf.random.set_seed(11)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    def input_fn(input_context: tf.distribute.InputContext) -> tf.data.Dataset:
        assert input_context.input_pipeline_id == worker
        return rows_of(worker, input_context.num_input_pipelines, arguments.get("epochs", -1))

    config = tfe.RunConfig(
        model_dir=f"{folder}/model",
        train_distribute=strategy,
        save_input_position=True,
        save_checkpoints_steps=10,
    )
    tfe.Estimator(counting_model.noisy_model_fn, config=config).train(
        input_fn,
        hooks=[_Hook(arguments, worker)],
        saving_listeners=[_Listener(arguments.get("die_before_saving"))],
        max_steps=arguments["max_steps"],
    )


def _forked(folder: str, worker: int, addresses: list[str], arguments: dict[str, Any]) -> int:
    """Starts a worker; returns its process. Importing TensorFlow for each takes longer than all else."""
    process = os.fork()
    if process:
        return process
    log = os.open(f"{folder}/{worker}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": worker}}
    os.environ["TF_CONFIG"] = json.dumps(task)
    code = 1
    try:
        train(folder, worker, arguments)
        code = 0
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _ended(workers: list[int]) -> list[int]:
    """Waits for the workers; when one is killed so are the others, as an orchestrator does it."""
    codes: dict[int, int] = {}
    while len(codes) < len(workers):
        process, status = os.wait()
        codes[process] = os.waitstatus_to_exitcode(status)
        if codes[process] == -signal.SIGKILL:
            for other in set(workers) - codes.keys():
                os.kill(other, signal.SIGKILL)
    return [codes[worker] for worker in workers]


def main(folder: str, runs: str) -> None:
    codes = []
    for arguments in json.loads(runs):
        addresses = free_ports(arguments.get("workers", 2))
        workers = [
            _forked(folder, worker, addresses, arguments) for worker in range(len(addresses))
        ]
        codes.append(_ended(workers))
    print(json.dumps(codes))


if __name__ == "__main__":
    main(*sys.argv[1:])
