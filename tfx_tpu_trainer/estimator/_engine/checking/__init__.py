"""What is refused before and during a run."""
