"""From a declared pipeline to a job on Kubeflow Pipelines or Vertex AI: compiled, checked, sent."""

from tfx_tpu_trainer.extras import of_extra

# Not TFX itself: a mistake on a command line is told before anything that takes as long is imported.
with of_extra("tfx", for_what="tfx_tpu_trainer.orchestration"):
    import pydantic as pydantic
