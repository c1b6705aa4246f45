"""Names for the wings above this one, beyond the API of `tf.estimator`; programs need none of them.

The component watches a training with them, a preflight traces a model's steps, the serving check reads a graph, and
`compat` supplies the original's own modules. All other names are private to `tfx_tpu_trainer.estimator` and change
without notice.

Some names are modules: `graph_nodes` walks a graph's nodes and functions, `ops_on_tpu` lists the ops that TPUs run,
`shardings` reads the annotations of a split model, `checkpoints` finds checkpoints in a folder, and `tf_private` has
the private calls of TensorFlow that the wings share.
"""

from tfx_tpu_trainer.estimator._calls import call_graph
from tfx_tpu_trainer.estimator._engine import graph_nodes, tf_private
from tfx_tpu_trainer.estimator._engine.checkpointing import checkpoints
from tfx_tpu_trainer.estimator._engine.checkpointing.async_saves import PatientListener
from tfx_tpu_trainer.estimator._engine.checkpointing.checkpoint_errors import (
    checkpoint_paths,
    find_damage,
    newest_sound_checkpoint,
)
from tfx_tpu_trainer.estimator._engine.checkpointing.input_position import (
    POSITIONS_FOLDER,
    latest_description,
    log_not_saved,
    remove_positions,
)
from tfx_tpu_trainer.estimator._engine.copying.cross_replica_ops import SUM
from tfx_tpu_trainer.estimator._engine.evaluating.data_slices import (
    EXAMPLE_COUNT,
    Slice,
    slice_eval_metrics,
    slice_membership,
    split_by_slice,
)
from tfx_tpu_trainer.estimator._engine.evaluating.evaluation import EvalResult, RefuseMoreRows
from tfx_tpu_trainer.estimator._engine.evaluating.sampled_rows import RowSample, RowSampler
from tfx_tpu_trainer.estimator._engine.feeding.dataset_rewrites import tuned_where_it_helps
from tfx_tpu_trainer.estimator._engine.feeding.input_tensors import (
    InputTensors,
    as_input_tensors,
    count_rows,
    named_leaves,
)
from tfx_tpu_trainer.estimator._engine.graph_nodes import (
    all_nodes,
    called_functions,
    functions_of,
    tensor_names,
)
from tfx_tpu_trainer.estimator._engine.loops.steps_per_call import LoopEndHook
from tfx_tpu_trainer.estimator._engine.nan_checks import NanLossError
from tfx_tpu_trainer.estimator._engine.reporting.gradients import NORM
from tfx_tpu_trainer.estimator._engine.sessions.preemption import (
    StoppedBySignal,
    ask_to_stop,
    listening,
)
from tfx_tpu_trainer.estimator._engine.sessions.stall_watch import StalledError
from tfx_tpu_trainer.estimator._engine.source_lines import source_line
from tfx_tpu_trainer.estimator._engine.template import HostFunction, ModelTemplate
from tfx_tpu_trainer.estimator._engine.training.awaited import AwaitedListener
from tfx_tpu_trainer.estimator._evaluations import OpenEvaluation
from tfx_tpu_trainer.estimator._task_environment import TaskType, read_task_environment
from tfx_tpu_trainer.estimator._user_calls import argument_names, call_input_fn
from tfx_tpu_trainer.estimator.export._meta_graph import HOST_TAGS, TPU_TAGS, MetaGraph
from tfx_tpu_trainer.estimator.export._receivers import SINGLE_RECEIVER_NAME, host_signatures_of
from tfx_tpu_trainer.estimator.heads._head import MetricKeys, PredictionKeys
from tfx_tpu_trainer.estimator.hooks import CheckpointInputPipelineHook
from tfx_tpu_trainer.estimator.keras._checkpoints import remove_first_values
from tfx_tpu_trainer.estimator.keras._to_estimator import (
    is_keras_model,
    keras_model_fn,
    keras_output_names,
)
from tfx_tpu_trainer.estimator.places import ops_on_tpu, shardings
from tfx_tpu_trainer.estimator.places.choice import (
    EMULATE_VARIABLE,
    emulated_replicas,
    emulates,
    environment_emulates,
    session_master,
)
from tfx_tpu_trainer.estimator.places.outside_compilation import OUTSIDE_MARK, is_outside
from tfx_tpu_trainer.estimator.places.refused_ops import check_training_on_cores
from tfx_tpu_trainer.estimator.places.shardings import input_partitions
from tfx_tpu_trainer.estimator.schedule._local import (
    CheckpointEvaluator,
    EvaluatedCheckpoint,
    EvaluationListener,
)
from tfx_tpu_trainer.estimator.schedule._tasks import run_schedule, start_server
from tfx_tpu_trainer.estimator.tpu._calls import TPUCallSettings, TPUEstimatorCalls
from tfx_tpu_trainer.estimator.tpu._cluster_resolver import EmulatedTPUClusterResolver
from tfx_tpu_trainer.estimator.tpu._tpu_context import TPUContext
from tfx_tpu_trainer.estimator.tpu._tpu_estimator import call_settings
from tfx_tpu_trainer.estimator.tpu.cores.evaluation_and_prediction import check_predictions
from tfx_tpu_trainer.estimator.tpu.cores.trace import CoreTrace

__all__ = [
    "EMULATE_VARIABLE",
    "EXAMPLE_COUNT",
    "HOST_TAGS",
    "NORM",
    "OUTSIDE_MARK",
    "POSITIONS_FOLDER",
    "SINGLE_RECEIVER_NAME",
    "SUM",
    "TPU_TAGS",
    "AwaitedListener",
    "CheckpointEvaluator",
    "CheckpointInputPipelineHook",
    "CoreTrace",
    "EmulatedTPUClusterResolver",
    "EvalResult",
    "EvaluatedCheckpoint",
    "EvaluationListener",
    "HostFunction",
    "InputTensors",
    "LoopEndHook",
    "MetaGraph",
    "MetricKeys",
    "ModelTemplate",
    "NanLossError",
    "OpenEvaluation",
    "PatientListener",
    "PredictionKeys",
    "RefuseMoreRows",
    "RowSample",
    "RowSampler",
    "Slice",
    "StalledError",
    "StoppedBySignal",
    "TPUCallSettings",
    "TPUContext",
    "TPUEstimatorCalls",
    "TaskType",
    "all_nodes",
    "argument_names",
    "as_input_tensors",
    "ask_to_stop",
    "call_graph",
    "call_input_fn",
    "call_settings",
    "called_functions",
    "check_predictions",
    "check_training_on_cores",
    "checkpoint_paths",
    "checkpoints",
    "count_rows",
    "emulated_replicas",
    "emulates",
    "environment_emulates",
    "find_damage",
    "functions_of",
    "graph_nodes",
    "host_signatures_of",
    "input_partitions",
    "is_keras_model",
    "is_outside",
    "keras_model_fn",
    "keras_output_names",
    "latest_description",
    "listening",
    "log_not_saved",
    "named_leaves",
    "newest_sound_checkpoint",
    "ops_on_tpu",
    "read_task_environment",
    "remove_first_values",
    "remove_positions",
    "run_schedule",
    "session_master",
    "shardings",
    "slice_eval_metrics",
    "slice_membership",
    "source_line",
    "split_by_slice",
    "start_server",
    "tensor_names",
    "tf_private",
    "tuned_where_it_helps",
]
