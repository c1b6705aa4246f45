"""Example pipelines and the runner that runs them here; not part of the installed package."""
