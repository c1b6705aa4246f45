"""Runs one side of a proof in its own process: `python side.py JSON`.

Run by its path, by the interpreter of the original too, in whose environment this package is not installed.
"""

import importlib
import json
import operator
import os
import sys
from typing import Any

# Names of tf.contrib.tpu that later TensorFlows have in the private module of their TPUEstimator only.
_OF_CONTRIB = {
    "BatchConfig",
    "ExportSavedModelApiVersion",
    "call_computation",
    "export_estimator_savedmodel",
    "inference_on_tpu",
    "model_fn_inference_on_tpu",
}


def _prepare_original(tensorflow: Any, *, on_host: bool) -> None:
    """Lets repaired programs find the original's estimators, and keeps TPU programs on the host."""
    v1 = tensorflow.compat.v1
    # The rest of contrib comes from this package: the same code on both sides.
    importlib.import_module("tfx_tpu_trainer.compat.contrib")
    package = sys.modules["tfx_tpu_trainer"]
    for name in ("estimator", "estimator.experimental", "estimator.export", "estimator.tpu"):
        sys.modules[f"tfx_tpu_trainer.{name}"] = operator.attrgetter(name)(v1)
    vars(package)["estimator"] = v1.estimator
    # Programs of this package, and repaired ones, find these names in `estimator.tpu`, as in tf.contrib.tpu.
    tpu = v1.estimator.tpu
    tpu.CrossShardOptimizer = v1.tpu.CrossShardOptimizer
    tpu.TPUClusterResolver = tensorflow.distribute.cluster_resolver.TPUClusterResolver
    private = vars(sys.modules[tpu.TPUEstimator.__module__])
    for name in _OF_CONTRIB & private.keys():
        setattr(tpu, name, private[name])
    # TensorFlow 2.15 looks for its own layers in a module that no release of tf_keras has.
    layers = sys.modules[v1.layers.BatchNormalization.__module__]
    sys.modules["tf_keras.legacy_tf_layers.normalization"] = layers
    if not on_host:
        return
    initialize = tpu.TPUEstimator.__init__

    def without_tpu(self: Any, *arguments: Any, **named: Any) -> None:
        initialize(self, *arguments, **{**named, "use_tpu": False})

    tpu.TPUEstimator.__init__ = without_tpu
    v1.tpu.CrossShardOptimizer = tpu.CrossShardOptimizer = _OwnOptimizer
    apis = [api.distribute.cluster_resolver for api in (tensorflow, v1, tensorflow.compat.v2)]
    host = tensorflow.distribute.cluster_resolver.SimpleClusterResolver(v1.train.ClusterSpec({}))
    for module in (*apis, tpu):
        module.TPUClusterResolver = lambda *_, **__: host


class _OwnOptimizer:
    """A CrossShardOptimizer on the host: on one core a sum is its only term, and the op has no host kernel."""

    def __new__(cls, opt: Any, *_: Any, **__: Any) -> Any:
        return opt


def _single_steps(tensorflow: Any) -> None:
    """Makes sessions on cores run one step per call, so that hooks see each."""
    config = tensorflow.compat.v1.estimator.tpu.TPUConfig
    make = config.__new__

    def make_with_one(cls: Any, iterations_per_loop: Any = 1, *rest: Any, **named: Any) -> Any:
        return make(cls, 1, *rest, **named)

    config.__new__ = make_with_one


def main() -> int:
    """Runs the side that the first argument describes, and returns the program's exit code."""
    given = json.loads(sys.argv[1])
    # Imports the package alone: its neighbours may belong to another TensorFlow.
    sys.path[0] = given["package"]
    importlib.import_module("tfx_tpu_trainer")
    # As with `python -m`: the folder of the command, not of this file.
    sys.path[0] = os.getcwd()
    compat: Any = importlib.import_module("tfx_tpu_trainer.compat")
    if given["original"]:
        # The program's other packages are in the command's environment.
        sys.path += [each for each in given["libraries"] if each not in sys.path]
        tensorflow: Any = importlib.import_module("tensorflow")
        _prepare_original(tensorflow, on_host=bool(given["emulate"]))
    else:
        compat.install(emulate=True if given["emulate"] else None)
        tensorflow = importlib.import_module("tensorflow")
        if given["emulate"]:
            _single_steps(tensorflow)
    run = compat.program_to_run(
        given["words"], module=given["module"], repair=given["repair"], packages=given["packages"]
    )
    recorder: Any = importlib.import_module("tfx_tpu_trainer.workbench.prove.recorder")
    emulated = bool(given["emulate"]) and not given["original"]
    with recorder.Recorder(**given["recorder"], emulated=emulated).recording():
        return run()


if __name__ == "__main__":
    sys.exit(main())
