"""Opens sessions, keeps them, and ends them."""
