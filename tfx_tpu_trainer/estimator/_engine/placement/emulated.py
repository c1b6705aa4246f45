"""Training on emulated TPU cores: one copy of the template for each core, on this host."""

from __future__ import annotations

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.checking.train_op_check import check_training_on_cores
from tfx_tpu_trainer.estimator._engine.copying.core_turns import ends_of_turns
from tfx_tpu_trainer.estimator._engine.copying.graph_copy import Fetch, GraphCopier
from tfx_tpu_trainer.estimator._engine.copying.traced_host_function import trace_host_function
from tfx_tpu_trainer.estimator._engine.feeding.core_feed import CoreFeed
from tfx_tpu_trainer.estimator._engine.loops.step_loop import StepLoop, build_step_loop
from tfx_tpu_trainer.estimator._engine.reporting.gradients import FirstStepOfLoop
from tfx_tpu_trainer.estimator._engine.template import ModelTemplate


def place_training_on_cores(
    template: ModelTemplate,
    feed: CoreFeed,
    *,
    cores: int,
    broadcast: bool,
    host_call_every_n_steps: int,
    gradients: FirstStepOfLoop | None = None,
) -> StepLoop:
    """Makes a loop of training steps over emulated cores.

    Each core has its own copy of the model on its own rows; variables are shared, gradients are
    combined where the model sums over replicas, and only the first core's train_op runs, as its
    gradients are everybody's.

    Args:
        template: A template of mode `"train"`, traced on the feed's placeholders.
        feed: Returns each core its rows.
        cores: Number of replicas.
        broadcast: Whether every core has the whole batch, so that host tensors are taken from
            the first core only.
        host_call_every_n_steps: Steps of a loop between host calls.
        gradients: Keeps what is written of the gradients. Defaults to `None`: nothing is.

    Returns:
        The loop. Its loss is the mean over the cores.

    Raises:
        ValueError: If several cores train without a sum over replicas.
    """
    check_training_on_cores(template, cores=cores)
    host_call = trace_host_function(template.host_call, cores=cores, broadcast=broadcast)
    table_update = trace_host_function(
        template.table_update, cores=cores, broadcast=False, full=False
    )
    copier = GraphCopier(template.graph)
    turns = ends_of_turns(
        copier, [template.train_op, template.loss], inputs=feed.placeholders, cores=cores
    )

    def step(number: tf.Tensor) -> tf.Tensor:
        fetches = [Fetch(0, template.train_op)]
        fetches += [Fetch(core, template.loss) for core in range(cores)]
        table_fetches = [] if table_update is None else table_update.fetches()
        fetches += table_fetches
        fetches += [] if host_call is None else host_call.fetches()
        watched = () if gradients is None else gradients.tensors
        # The first core's are everybody's.
        fetches += [Fetch(0, tensor) for tensor in watched]
        copies = copier.copy(fetches, replaced=feed.read(copier), name="cores", ends_of_turns=turns)
        effects = [copies[0]]
        end = cores + 1 + len(table_fetches)
        if gradients is not None:
            copies, of_gradients = copies[: -len(watched)], copies[-len(watched) :]
            effects.append(gradients.keep(number, of_gradients))
        if table_update is not None:
            slices = table_update.gathered(copies[cores + 1 : end])
            effects.append(table_update.run(copier, slices, name="table_update"))
        if host_call is not None:
            gathered = host_call.gathered(copies[end:])

            def call_host() -> tf.Tensor:
                with tf.control_dependencies([host_call.run(copier, gathered, name="host_call")]):
                    return tf.constant(True)

            due = tf.equal(number % host_call_every_n_steps, 0)
            effects.append(tf.cond(due, call_host, lambda: tf.constant(False)))
        with tf.control_dependencies(effects):
            return tf.add_n(copies[1 : cores + 1]) / cores

    return build_step_loop(step, loss_dtype=template.loss_dtype)
