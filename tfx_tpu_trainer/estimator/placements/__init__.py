"""Where a call of train, evaluate or predict runs: one module for each place."""
