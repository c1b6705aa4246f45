"""Many steps in one session call, and how many."""
