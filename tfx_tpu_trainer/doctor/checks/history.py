"""What TPUEstimator's page promised in TensorFlow 1.4, and no longer held by 2.15."""

from __future__ import annotations

from typing import Final

EVALUATION_ON_CPU: Final = (
    "Evaluation without eval_batch_size. In TensorFlow 1.4 that meant evaluation on the CPU, use_tpu or not; since "
    "then use_tpu decides alone, and evaluate() is a ValueError here."
)
PREDICT_ON_CPU: Final = (
    "Prediction without predict_batch_size. In TensorFlow 1.4 predict() was always the CPU's; since then it runs "
    "where use_tpu says, and is a ValueError here."
)
ONE_GRAPH: Final = (
    "In TensorFlow 1.4 an export of a TPUEstimator had one graph, for CPUs. Since then it has two, tagged "
    "['serve'] and ['serve', 'tpu']: who loads it names the tags, tf.saved_model.load(path, tags=[\"serve\"])."
)
