"""How sessions are opened, kept and ended."""
