"""Shows, lists, compares, draws and removes the results of runs."""
