"""`python -m tests.engines.flink.run_component NAME INPUTS FOLDER ARGUMENTS`: one component in its own process."""

import json
import pathlib
import sys

from tests.pipelines.beam_results import run_component, taxi_components


def main() -> None:
    name, inputs, folder, arguments = sys.argv[1:]
    component = taxi_components(pathlib.Path(folder) / "root")[name]
    folders = {key: pathlib.Path(place) for key, place in json.loads(inputs).items()}
    run_component(component, folders, pathlib.Path(folder) / "outputs", json.loads(arguments))


if __name__ == "__main__":
    main()
