"""Turns the result of an input_fn into the rows of a step."""
