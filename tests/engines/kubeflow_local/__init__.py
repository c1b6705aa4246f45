"""The local engine of Kubeflow's own SDK, which runs what is compiled for Kubeflow Pipelines."""
