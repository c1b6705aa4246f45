"""TensorFlow's own classes of export outputs, which programs for the original import themselves.

`tf.estimator.export.PredictOutput` of the original is TensorFlow's class; libraries import it from
where it stands, in `tensorflow.python.saved_model.model_utils`, which TensorFlow 2.16 still has.

| name | why | if it goes away |
|---|---|---|
| `export_output.ExportOutput` | what a spec's `export_outputs` may hold beside ours | only ours are taken: nobody can make the others |
| `export_output.ClassificationOutput`, `RegressionOutput`, `PredictOutput` | their tensors, to serve them from a TPU | the same |
"""

from __future__ import annotations

from tensorflow.python.saved_model.model_utils.export_output import (
    ClassificationOutput,
    ExportOutput,
    PredictOutput,
    RegressionOutput,
)

__all__ = ["ClassificationOutput", "ExportOutput", "PredictOutput", "RegressionOutput"]
