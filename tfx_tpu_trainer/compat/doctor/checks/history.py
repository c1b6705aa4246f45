"""What TPUEstimator's page promised in TensorFlow 1.4, and no longer held by 2.15."""

from __future__ import annotations

from typing import Final

EVALUATION_ON_CPU: Final = (
    "Evaluation without eval_batch_size. In TensorFlow 1.4 that meant evaluation on the CPU, "
    "whatever use_tpu was; since then use_tpu alone decides, and evaluate() raises a ValueError "
    "here."
)
PREDICT_ON_CPU: Final = (
    "Prediction without predict_batch_size. In TensorFlow 1.4 predict() always ran on the CPU; "
    "since then use_tpu decides, and predict() raises a ValueError here."
)
ONE_GRAPH: Final = (
    "In TensorFlow 1.4 an export of a TPUEstimator had one graph, for CPUs. Since then it has "
    "two, tagged ['serve'] and ['serve', 'tpu']: name the tags when you load it, "
    'tf.saved_model.load(path, tags=["serve"]).'
)
