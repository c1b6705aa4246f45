"""Runs one side of a proof in its own process: `python side.py JSON`.

It is run by its path, since this package is not installed in the original's environment.
"""

import importlib
import importlib.util
import json
import os
import sys
from types import ModuleType
from typing import Any


def _package(folder: str) -> ModuleType:
    """Imports `tfx_tpu_trainer` from its folder, without its neighbours."""
    spec = importlib.util.spec_from_file_location(
        "tfx_tpu_trainer", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["tfx_tpu_trainer"] = module
    spec.loader.exec_module(module)
    return module


def _prepare_original(tensorflow: Any, *, on_host: bool) -> None:
    """Lets repaired programs find the original's estimators, and keeps TPU programs on the host."""
    v1 = tensorflow.compat.v1
    # The rest of contrib comes from this package: the same code on both sides.
    importlib.import_module("tfx_tpu_trainer.compat.contrib")
    package = sys.modules["tfx_tpu_trainer"]
    for name, module in (("estimator", v1.estimator), ("estimator.tpu", v1.estimator.tpu)):
        sys.modules[f"tfx_tpu_trainer.{name}"] = module
    vars(package)["estimator"] = v1.estimator
    if not on_host:
        return
    of_tpu = v1.estimator.tpu.TPUEstimator
    initialize = of_tpu.__init__

    def without_tpu(self: Any, *arguments: Any, **named: Any) -> None:
        initialize(self, *arguments, **{**named, "use_tpu": False})

    of_tpu.__init__ = without_tpu
    # On one core a sum is its only term, and the op has no host kernel.
    v1.tpu.CrossShardOptimizer = lambda opt, *_, **__: opt
    for api in (tensorflow, v1, tensorflow.compat.v2):
        api.distribute.cluster_resolver.TPUClusterResolver = lambda *_, **__: None


def _single_steps(tensorflow: Any) -> None:
    """Makes sessions on cores run one step per call, so hooks see each."""
    config = tensorflow.compat.v1.estimator.tpu.TPUConfig
    make = config.__new__

    def make_with_one(cls: Any, iterations_per_loop: Any = 1, *rest: Any, **named: Any) -> Any:
        return make(cls, 1, *rest, **named)

    config.__new__ = make_with_one


def main() -> int:
    """Runs the side that the first argument describes, and returns the program's exit code."""
    given = json.loads(sys.argv[1])
    # Like `python -m`: the folder of the command instead of this file's.
    sys.path[0] = os.getcwd()
    package = _package(given["package"])
    compat: Any = importlib.import_module(f"{package.__name__}.compat")
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
    spec = importlib.util.spec_from_file_location(
        "recorder", os.path.join(given["here"], "recorder.py")
    )
    assert spec is not None and spec.loader is not None
    recorder = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recorder)
    made = recorder.Recorder(
        given["folder"],
        start=given["start"],
        probe=given["probe"],
        emulated=bool(given["emulate"]) and not given["original"],
    )
    with made.recording():
        return run()


if __name__ == "__main__":
    sys.exit(main())
