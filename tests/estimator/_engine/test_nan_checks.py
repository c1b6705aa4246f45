import numpy as np
import pytest
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine import nan_checks
from tfx_tpu_trainer.estimator._engine.nan_checks import StopAtNanHook
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph

v1 = tf.compat.v1


def _train(folder, losses: list[float], *, save: bool) -> int:
    """Steps through `losses` under the hook; returns the steps made."""
    with fresh_graph():
        step = v1.train.get_global_step()
        loss = tf.gather(tf.constant(losses), step.read_value())
        with tf.control_dependencies([loss]):
            train_op = step.assign_add(1)
        with v1.train.MonitoredTrainingSession(
            checkpoint_dir=str(folder) if save else None,
            save_checkpoint_steps=2 if save else None,
            save_checkpoint_secs=None,
            save_summaries_steps=None,
            log_step_count_steps=None,
            hooks=[
                StopAtNanHook(loss, model_dir=str(folder)),
                v1.train.StopAtStepHook(last_step=len(losses)),
            ],
        ) as session:
            made = 0
            while not session.should_stop():
                made = session.run(train_op)
        return made


@pytest.mark.behaviour(175)
def test_it_is_tensorflows_error(tmp_path):
    with pytest.raises(v1.train.NanLossDuringTrainingError, match="global step 1; none was saved"):
        _train(tmp_path, [np.nan], save=False)


def test_a_finite_or_infinite_loss_goes_on(tmp_path):
    assert _train(tmp_path, [1.0, np.inf, 0.5], save=False) == 3


def _run(fetches, hooks=()):
    with v1.train.MonitoredSession(hooks=hooks) as session:
        return session.run(fetches)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.behaviour(174)
def test_a_trainable_variable_that_is_no_number(value):
    with fresh_graph():
        weight = v1.get_variable("scope/weight", initializer=1.0)
        spoil = weight.assign(value, read_value=False)
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="Gradient for scope/weight is NaN"
        ):
            _run(nan_checks.fail_at_nan_after(spoil))


@pytest.mark.behaviour(174)
def test_other_variables_and_numbers_pass():
    with fresh_graph():
        v1.get_variable("weight", initializer=1.0)
        v1.get_variable("count", initializer=1)
        v1.get_variable("statistic", initializer=np.float32(np.nan), trainable=False)
        _run(nan_checks.fail_at_nan_after(tf.no_op()), [nan_checks.VariableChecksHook()])


@pytest.mark.behaviour(174)
def test_the_hook_looks_when_the_session_is_made():
    with fresh_graph():
        v1.get_variable("weight", initializer=np.float32(np.nan))
        with pytest.raises(tf.errors.InvalidArgumentError, match="Gradient for weight is NaN"):
            _run(tf.no_op(), [nan_checks.VariableChecksHook()])
