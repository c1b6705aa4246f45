"""A training that its test kills: `python -m tests.estimator.killed_program FOLDER STEPS emulated|host`."""

import sys

from tests.estimator import counting_model
from tfx_tpu_trainer.estimator import tpu


def main(folder: str, steps: str, place: str) -> None:
    """Trains to a step."""
    options = {"config": {"save_checkpoints_steps": 20, "tf_random_seed": 2}}
    if place == "emulated":
        options["use_tpu"] = True
        options["config"] |= {
            "master": "emulated",
            "tpu_config": tpu.TPUConfig(num_shards=2, iterations_per_loop=5),
        }
    counting_model.estimator(folder, **options).train(counting_model.shuffled, max_steps=int(steps))


if __name__ == "__main__":
    main(*sys.argv[1:])
