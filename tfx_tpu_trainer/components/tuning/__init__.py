"""Tunes a model_fn's hyperparameters with keras-tuner inside TFX's stock Tuner (docs/tuning.md).

```python
from tfx_tpu_trainer.components.tuning import make_tuner_fn

tuner_fn = make_tuner_fn(model_fn=model_fn, search_space=search_space, objective="auc")
```
"""

from tfx_tpu_trainer._support.imports import of_extra

with of_extra("tune", for_what="tfx_tpu_trainer.components.tuning"):
    # Chooses the model's Keras before keras-tuner imports TensorFlow.
    import tfx_tpu_trainer.estimator  # noqa: F401
    from tfx_tpu_trainer.components.tuning._tune_job import TuneSettings
    from tfx_tpu_trainer.components.tuning._tuner import EstimatorTuner, make_tuner_fn

__all__ = ["EstimatorTuner", "TuneSettings", "make_tuner_fn"]
