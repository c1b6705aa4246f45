"""`python run_compiled.py PIPELINE ROOT PROGRAMS SOURCES`: runs a compiled pipeline on Kubeflow's own local engine.

It reads the file, orders the tasks, hands parameters and artifacts from one to the next, fills in the placeholders of
their commands and reads what they have written. Runs in an environment of kfp alone, with TFX in that of PROGRAMS.
"""

import sys

import container_processes

sys.modules["docker"] = container_processes  # type: ignore[assignment]

import kfp  # noqa: E402
from kfp import components, local  # noqa: E402


def main() -> None:
    pipeline, root, container_processes.PROGRAMS, container_processes.SOURCES = sys.argv[1:]
    print(f"kfp {kfp.__version__}", flush=True)
    local.init(local.DockerRunner(), pipeline_root=root, raise_on_error=True)
    components.load_component_from_file(pipeline)()


if __name__ == "__main__":
    main()
