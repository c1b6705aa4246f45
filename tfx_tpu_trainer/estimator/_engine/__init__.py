"""A model_fn traced once and run: graphs, sessions and checkpoints, nothing of TFX or of specs.

The way through the package: `tracing` opens a graph, `feeding` puts an input into it, the caller
calls the model and describes the result as a `template.ModelTemplate`, a module of `placement`
decides where the template's nodes run, and `training`, `evaluating` or `predicting` runs the
session.
"""
