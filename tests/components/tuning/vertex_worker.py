"""Runs one process of a search as a CustomJob of Vertex AI does.

Started by `python -m tests.components.tuning.vertex_worker FOLDER POOL`.
"""

from __future__ import annotations

import logging
import pathlib
import sys

from tfx.extensions.google_cloud_ai_platform.tuner.executor import _WorkerExecutor

from tests.components.tuning.tuner_execution import TunerExecution


def main() -> None:
    # absl has given the root logger its handler by now, which basicConfig alone would leave as it is.
    logging.basicConfig(level=logging.INFO, force=True)
    folder, pool = pathlib.Path(sys.argv[1]), sys.argv[2]
    execution = TunerExecution.of(
        folder,
        "tests.components.tuning.small_search.cliff_tuner_fn",
        steps=6,
        oracle="random",
        max_trials=6,
        evaluations=2,
    )
    execution.run(_WorkerExecutor, inputs=folder / pool)


if __name__ == "__main__":
    main()
