"""`python -m tests.engines.flink.run_statistics EXAMPLES FOLDER ARGUMENTS`: StatisticsGen in a process of its own."""

from __future__ import annotations

import json
import pathlib
import sys

from tests.pipelines.beam_components import run_component, taxi_components


def main() -> None:
    examples, folder, arguments = sys.argv[1:]
    component = taxi_components(pathlib.Path(folder) / "root")["StatisticsGen"]
    inputs = {"examples": pathlib.Path(examples)}
    run_component(component, inputs, pathlib.Path(folder) / "outputs", json.loads(arguments))


if __name__ == "__main__":
    main()
