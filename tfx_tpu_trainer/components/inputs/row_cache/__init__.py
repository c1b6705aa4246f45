"""A training's rows, parsed once: columns in memory or on local disk, from which each epoch draws its rows again."""
