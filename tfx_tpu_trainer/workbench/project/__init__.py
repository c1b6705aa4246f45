"""A project on disk: its config, its pipeline, its root with the runs' metadata, and who has locked it.

A project's `config.py` and `pipeline.py` import what they need from here; `components` has the components that its
pipelines end with.
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
