"""Compares published training speeds of named TPUs with the preflight's numbers for the same steps."""
