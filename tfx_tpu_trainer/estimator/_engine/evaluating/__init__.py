"""Evaluates a template: runs its batches and computes its metrics."""
