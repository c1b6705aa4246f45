"""One task of a cluster: `python -m tests.estimator.schedule.cluster_program MODEL_DIR MAX_STEPS`.

TF_CONFIG says which.
"""

import sys

import tensorflow as tf

from tests.estimator.schedule import plain
from tfx_tpu_trainer import estimator as tfe

v1 = tf.compat.v1


def main(model_dir: str, max_steps: int) -> None:
    v1.logging.set_verbosity(v1.logging.INFO)
    estimator = plain.make(
        model_dir, save=200, experimental_max_worker_delay_secs=1, log_step_count_steps=200
    )
    # A worker that is left over ends when the last checkpoint is there.
    hook = tfe.experimental.make_stop_at_checkpoint_step_hook(estimator, max_steps, 1)
    tfe.train_and_evaluate(
        estimator,
        tfe.TrainSpec(plain.train_input, max_steps=max_steps, hooks=[hook]),
        tfe.EvalSpec(
            plain.eval_input,
            steps=None,
            exporters=tfe.FinalExporter("final", plain.receiver_fn),
            start_delay_secs=0,
            throttle_secs=1,
        ),
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
