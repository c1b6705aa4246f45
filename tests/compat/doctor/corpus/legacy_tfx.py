"""A module and a pipeline of TFX 1.15."""
import tensorflow as tf
import tensorflow_model_analysis as tfma
from tfx.components import Trainer
from tfx.components.trainer import executor
from tfx.components.trainer.executor import TrainerFnArgs  #: edit tfx.components.trainer.executor.TrainerFnArgs -> tfx.components.FnArgs


def _eval_input_receiver_fn():
    return tfma.export.EvalInputReceiver(features={}, receiver_tensors={}, labels=None)  #: works tensorflow_model_analysis.export.EvalInputReceiver


def trainer_fn(trainer_fn_args, schema):  #: works trainer_fn
    return {"estimator": tf.estimator.LinearRegressor([])}  #: works tf.estimator.LinearRegressor


def make(examples, schema):
    return Trainer(
        examples=examples, schema=schema,
        trainer_fn="module.trainer_fn",  #: edit Trainer(trainer_fn=...) -> TpuTrainer(
        custom_executor_spec=executor.Executor)  #: edit tfx.components.trainer.executor.Executor -> TpuTrainer(module_file=...)


auc = tfma.post_export_metrics.auc  #: edit tensorflow_model_analysis.post_export_metrics.auc -> tfma.MetricConfig
