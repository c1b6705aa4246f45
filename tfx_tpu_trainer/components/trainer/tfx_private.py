"""Lists names of TFX without an alias in `tfx.v1`, each with the reason why it is needed.

All of them are stable from TFX 1.13 to 1.21. All other modules of `components/` import TFX as `from tfx import v1 as
tfx` or from here.
"""

from __future__ import annotations

# Base class of EvalMetricsGateExecutor: the Kubeflow V2 entry point rewrites the blessing's model ids
# to resource names for this class and its subclasses only. If it goes away, so does that test of class.
from tfx.components.evaluator.executor import Executor as EvaluatorExecutor

# Base class of TpuTrainerExecutor: builds FnArgs (files of the splits, data accessor, folders) from
# artifacts. If it goes away, build FnArgs in train_job.py from `tfx.components.FnArgs`.
from tfx.components.trainer.executor import GenericExecutor

# Packages a module_file as a wheel when the pipeline is made, and installs it where it runs.
from tfx.components.util import udf_utils

# Base classes of a driver, which runs before TFX checks its cache. LastBlessedModel has one, since its result depends
# on a file that is not an input. ExampleGen's drivers derive from the same two.
from tfx.dsl.components.base.base_driver import BaseDriver

# Base class of VertexTpuTrainerExecutor; `tfx.v1` has only that of components that use Beam.
from tfx.dsl.components.base.base_executor import BaseExecutor

# Declares which class runs a component, as every custom component must. EvalMetricsGateExecutor needs the Beam one,
# since the class from which it must derive rejects others.
from tfx.dsl.components.base.executor_spec import BeamExecutorSpec, ExecutorClassSpec

# Common base class of all values that are not known before the pipeline runs, such as `channel.future()`. They pass the
# checks that are made when the pipeline is declared.
from tfx.dsl.placeholder.placeholder import Placeholder

# Starts a CustomJob that runs an executor on given artifacts, and waits for its end, like TFX's own Vertex Trainer,
# whose executor can start only the stock trainer.
from tfx.extensions.google_cloud_ai_platform.runner import start_cloud_training

# A driver's execution and result: see BaseDriver.
from tfx.orchestration.portable.base_driver import BaseDriver as PortableDriver
from tfx.orchestration.portable.data_types import ExecutionInfo
from tfx.proto.orchestration.driver_output_pb2 import DriverOutput

# Names of the stock Trainer's keys and messages; reads a single artifact of a list.
from tfx.types import artifact_utils, standard_component_specs

# The parts of a ComponentSpec. `tfx.v1` has only the function decorator @component, which supports neither proto
# parameters nor executor classes.
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter

# Reads the properties proto and custom_config in TFX's form; returns the import path of a class.
from tfx.utils import json_utils, name_utils, proto_utils

__all__ = [
    "BaseDriver",
    "BaseExecutor",
    "BeamExecutorSpec",
    "ChannelParameter",
    "ComponentSpec",
    "DriverOutput",
    "EvaluatorExecutor",
    "ExecutionInfo",
    "ExecutionParameter",
    "ExecutorClassSpec",
    "GenericExecutor",
    "Placeholder",
    "PortableDriver",
    "artifact_utils",
    "json_utils",
    "name_utils",
    "proto_utils",
    "standard_component_specs",
    "start_cloud_training",
    "udf_utils",
]
