"""Copies of a traced graph, once for each replica."""
