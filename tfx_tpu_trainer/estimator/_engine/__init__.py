"""Runs a model_fn that was traced once: graphs, sessions and checkpoints, without TFX, specs or places.

`tracing` opens a graph, `feeding` puts an input into it, and the caller calls the model and describes the result as a
`template.ModelTemplate`. A place (`estimator/places`) decides where the template's nodes run and makes a plan;
`training`, `evaluating` or `prediction` runs the plan in a session.
"""
