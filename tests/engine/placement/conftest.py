from __future__ import annotations

import tests.logical_devices  # noqa: F401
