"""A model_fn traced once and run: graphs, sessions and checkpoints, nothing of TFX, of specs or of places.

The way through the package: `tracing` opens a graph, `feeding` puts an input into it, the caller calls the model and
describes the result as a `template.ModelTemplate`. A place (`estimator/places`) decides where the template's nodes run
and makes a plan, and `training`, `evaluating` or `prediction` runs the plan in a session.
"""
