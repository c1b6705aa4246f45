"""From a declared pipeline to a job on Kubeflow Pipelines or Vertex AI: compiled, checked, sent."""
