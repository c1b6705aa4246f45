"""What is said of data that no project can be made of."""

from __future__ import annotations


class ScaffoldError(ValueError):
    """Data, a label or a folder that can't be used; the message is one line, and says what to do."""
