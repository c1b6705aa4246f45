"""Example pipelines; not part of the installed package."""
