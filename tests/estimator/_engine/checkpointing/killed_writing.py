"""A training that its test kills while a thread writes.

`python -m tests.estimator._engine.checkpointing.killed_writing FOLDER`
"""

import sys
import threading

from tests.estimator import counting_model
from tfx_tpu_trainer.estimator._engine.checkpointing import async_saves


class _WaitsForItsEnd(async_saves.PatientListener):
    def before_commit(self, step: int) -> None:
        if step == 20:
            print("writing", flush=True)
            threading.Event().wait(60)


def main(folder: str) -> None:
    """Trains to a step that it never reaches: the write of step 30 waits for that of step 20."""
    async_saves.WORTH_SECONDS = 0.0
    counting_model.estimator(folder).train(
        counting_model.shuffled, max_steps=33, saving_listeners=[_WaitsForItsEnd()]
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
