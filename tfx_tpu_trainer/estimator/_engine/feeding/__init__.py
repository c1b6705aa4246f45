"""From what input_fn returns to the rows of a step."""
