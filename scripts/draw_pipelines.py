"""Draws the example pipelines into docs/pipelines.md: `make docs`."""

from __future__ import annotations

from pathlib import Path

from scripts.draw_layers import with_block
from tfx_tpu_trainer.workbench.history.graph import Graph, graph_of_pipeline
from tfx_tpu_trainer.workbench.history.graph_drawing import to_mermaid
from tfx_tpu_trainer.workbench.project import find_pipeline

PAGE = Path(__file__).parents[1] / "docs" / "pipelines.md"
PIPELINES = ("taxi", "digits")


def graph_of(pipeline: str) -> Graph:
    """Returns the graph of an example pipeline with its own config."""
    project = find_pipeline(pipeline)
    config = project.config()
    # Nothing is read.
    return graph_of_pipeline(project.create_pipeline(config.model_copy(update={"data": "data"})))


def page(text: str) -> str:
    """Returns the page with today's pictures in it."""
    parts = [f"`{name}`:\n\n```mermaid\n{to_mermaid(graph_of(name))}```\n" for name in PIPELINES]
    return with_block(text, "\n".join(parts))


def main() -> None:
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
