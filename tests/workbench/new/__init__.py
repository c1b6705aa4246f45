"""Projects from data: reading, decisions, rendering, and whole runs."""
