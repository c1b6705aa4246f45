"""Runs a pipeline on this machine: in a child process, with progress, results, and a clean stop."""
