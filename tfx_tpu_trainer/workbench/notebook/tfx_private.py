"""Imports what TFX does not export of its notebook context.

`InteractiveContext` itself stands below `tfx.orchestration.experimental` and nowhere in `tfx.v1`; so do the registry
in which `context.show` looks, and what `context.run` returns.
"""

from tfx.orchestration.experimental.interactive.execution_result import ExecutionResult
from tfx.orchestration.experimental.interactive.interactive_context import InteractiveContext
from tfx.orchestration.experimental.interactive.visualizations import (
    ArtifactVisualization,
    get_registry,
)

__all__ = ["ArtifactVisualization", "ExecutionResult", "InteractiveContext", "get_registry"]
