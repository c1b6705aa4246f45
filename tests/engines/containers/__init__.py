"""A compiled pipeline, run container by container as a backend of Kubeflow Pipelines runs it."""
