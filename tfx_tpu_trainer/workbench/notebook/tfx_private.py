"""Imports parts of its notebook context that TFX does not export.

`InteractiveContext` is in `tfx.orchestration.experimental` and not in `tfx.v1`; the same holds for the registry that
`context.show` reads, and for the result of `context.run`.
"""

from tfx.orchestration.experimental.interactive.execution_result import ExecutionResult
from tfx.orchestration.experimental.interactive.interactive_context import InteractiveContext
from tfx.orchestration.experimental.interactive.visualizations import (
    ArtifactVisualization,
    get_registry,
)

__all__ = ["ArtifactVisualization", "ExecutionResult", "InteractiveContext", "get_registry"]
