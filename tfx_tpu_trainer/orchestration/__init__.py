"""From a declared pipeline to a job on Kubeflow Pipelines or Vertex AI: compiled, checked, sent."""

from tfx_tpu_trainer.extras import of_extra

with of_extra("tfx", for_what="tfx_tpu_trainer.orchestration"):
    import pydantic as pydantic
    import tfx as tfx
