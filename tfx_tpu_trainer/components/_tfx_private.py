"""Lists names of TFX without an alias in `tfx.v1`, each with the reason why it is needed.

All of them are stable from TFX 1.13 to 1.21. No other module of `components/` imports TFX except by
`from tfx import v1 as tfx` or from here.
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

# Base classes of a driver, which runs before TFX looks into its cache. LastBlessedModel has one, whose result
# depends on a file that is not an input. ExampleGen's drivers derive from the same two.
from tfx.dsl.components.base.base_driver import BaseDriver

# Base class of VertexTpuTrainerExecutor; `tfx.v1` has only that of components that use Beam.
from tfx.dsl.components.base.base_executor import BaseExecutor

# Declares which class runs a component: every custom component needs it.
# EvalMetricsGateExecutor needs the Beam one, which its base class requires.
from tfx.dsl.components.base.executor_spec import BeamExecutorSpec, ExecutorClassSpec

# Common base of all placeholders for values that are known only when the pipeline runs, such as
# `channel.future()`. They pass the checks that are made when the pipeline is declared.
from tfx.dsl.placeholder.placeholder import Placeholder

# Starts a CustomJob that runs an executor on given artifacts, and waits for its end, like TFX's own
# Vertex Trainer, whose executor can start only the stock trainer.
from tfx.extensions.google_cloud_ai_platform.runner import start_cloud_training

# A driver's execution, and its result: see BaseDriver.
from tfx.orchestration.portable.base_driver import BaseDriver as PortableDriver
from tfx.orchestration.portable.data_types import ExecutionInfo
from tfx.proto.orchestration.driver_output_pb2 import DriverOutput

# Names of the keys and messages that the stock Trainer uses; reading a single artifact of a list.
from tfx.types import artifact_utils, standard_component_specs

# The pieces of a ComponentSpec. `tfx.v1` has only the function decorator @component, which can
# neither have proto parameters nor a custom executor class.
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter

# Reads the proto and custom_config properties as TFX writes them; the import path of a class.
from tfx.utils import json_utils, name_utils, proto_utils

# The module that TFX's compiled commands run with `python -m` since 0.30.
RUN_EXECUTOR = "tfx.orchestration.kubeflow.v2.container.kubeflow_v2_run_executor"

__all__ = [
    "RUN_EXECUTOR",
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
    "title_to_class_path",
    "udf_utils",
]


def title_to_class_path() -> dict[str, str]:
    """Returns TFX's own table: an artifact's schema title in a compiled pipeline -> the artifact's class in a container.

    TFX reads any other title as the import path of a class, which `system.HTML` is not. If this goes away, let the
    compiled pipeline have RunPage's own name, which has this form; backends then show a link instead of the page.
    """
    # Imported here, since the module needs kfp, which only the extra `kubeflow` installs.
    from tfx.orchestration.kubeflow.v2 import compiler_utils

    return compiler_utils.TITLE_TO_CLASS_PATH
