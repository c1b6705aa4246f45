"""Defines a project on disk: its config, its pipeline, and its root with the runs' metadata and lock.

A project's `config.py` and `pipeline.py` import from here; `components` makes the last components of a pipeline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfx_tpu_trainer._support.imports import lazy_names

if TYPE_CHECKING:
    from tfx_tpu_trainer.workbench.project.config import (
        ConfigError,
        Count,
        GateSettings,
        PipelineConfig,
        ProjectConfig,
        Rate,
        Settings,
        SliceSettings,
        Strings,
        Text,
        TrainerSettings,
        TuneSettings,
    )
    from tfx_tpu_trainer.workbench.project.config_file import load_config
    from tfx_tpu_trainer.workbench.project.project import Project, find_pipeline, load_project

__all__ = [
    "ConfigError",
    "Count",
    "GateSettings",
    "PipelineConfig",
    "Project",
    "ProjectConfig",
    "Rate",
    "Settings",
    "SliceSettings",
    "Strings",
    "Text",
    "TrainerSettings",
    "TuneSettings",
    "find_pipeline",
    "load_config",
    "load_project",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".config": [
            "ConfigError",
            "Count",
            "GateSettings",
            "PipelineConfig",
            "ProjectConfig",
            "Rate",
            "Settings",
            "SliceSettings",
            "Strings",
            "Text",
            "TrainerSettings",
            "TuneSettings",
        ],
        ".config_file": ["load_config"],
        ".project": ["Project", "find_pipeline", "load_project"],
    },
)
