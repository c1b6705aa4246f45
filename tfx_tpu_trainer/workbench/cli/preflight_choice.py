"""`tfx-tpu-trainer preflight --choose`: writes the slice that a sweep has chosen into the project's config."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from tfx_tpu_trainer._support.terminal import standard_output
from tfx_tpu_trainer.hardware import TpuSpec
from tfx_tpu_trainer.preflight import Sweep
from tfx_tpu_trainer.workbench.project.config import ConfigError, PipelineConfig
from tfx_tpu_trainer.workbench.project.config_changes import change_config

if TYPE_CHECKING:
    from tfx_tpu_trainer.workbench.project.project import Project

# The config must set these itself, or the choice would be for another training.
_OF_THE_CONFIG = {
    "rows_per_epoch": "trainer.train_steps",
    "epochs": "trainer.train_steps",
    "train_steps": "trainer.train_steps",
    "num_cores_per_replica": "trainer.num_cores_per_replica",
    "input_partition_dims": "trainer.num_cores_per_replica",
}


def check_choice(options: Mapping[str, Any], project: Project | None) -> None:
    """Checks that `--choose` has a config to write to, and prices to choose by."""
    if project is None:
        raise click.UsageError(
            "--choose writes into a project's config: run it in a project, or name one with --project or --pipeline"
        )
    if options["price_file"] is None:
        raise click.UsageError("--choose needs --price: give a price file")
    for name, setting in _OF_THE_CONFIG.items():
        if options[name] is not None:
            raise click.UsageError(
                f"--{name} can't be combined with --choose, which uses the config's own value: set {setting} there"
            )


def possible_slices(
    tpus: Sequence[str], options: Mapping[str, Any], project: Project, config: PipelineConfig
) -> tuple[str, ...]:
    """Returns the slices that the config's other settings allow, and names the others."""
    if config.trainer.tpu and config.trainer.tpu.reservation:
        raise ConfigError(
            f"trainer.tpu.reservation={config.trainer.tpu.reservation!r}: a reserved slice is paid for already; "
            "remove the reservation from the config before --choose"
        )
    possible, problems = [], []
    for tpu in tpus:
        settings = [f"trainer.tpu={tpu}"]
        if options["batch_size"]:
            # Any size that the slice divides: the sweep skips listed sizes that it does not.
            rows = TpuSpec.read(tpu).tpu_slice.num_devices
            settings.append(f"trainer.train_batch_size={rows}")
        try:
            project.config(config_file=options["config_file"], overrides=settings)
            possible.append(tpu)
        except ConfigError as error:
            problems.append(f"{tpu} does not suit the config: {str(error).partition(': ')[2]}")
    if not possible:
        nothing = "no slice of one machine has a price: give --tpu, or prices of v5e, v6e or v5p"
        raise ConfigError([nothing, *problems][-1])
    for problem in problems:
        standard_output().print(problem, style="dim", highlight=False)
    return tuple(possible)


def write_choice(found: Sweep, options: Mapping[str, Any], project: Project) -> None:
    """Writes a sweep's choice into the config; without one, leaves the config and fails."""
    path = options["config_file"] or project.config_file
    shown = os.path.relpath(path)
    choice, row = found.choice, found.chosen_row
    if choice is None or row is None:
        raise click.ClickException(f"{found.missed} {shown} is unchanged.")
    before = project.config(config_file=path).trainer
    kept = before.tpu.model_dump(include={"runtime_image", "zone"}) if before.tpu else {}
    tpu = {
        "slice_name": choice.tpu,
        **({} if choice.way == "on demand" else {choice.way.replace("-", "_"): True}),
        **{key: value for key, value in kept.items() if value is not None},
    }
    settings: dict[str, Any] = {"trainer.tpu": tpu if len(tpu) > 1 else choice.tpu}
    if choice.batch_size != before.train_batch_size:
        rows = before.train_steps * before.train_batch_size
        settings["trainer.train_batch_size"] = choice.batch_size
        settings["trainer.train_steps"] = math.ceil(rows / choice.batch_size)
    after = change_config(project, settings, config_file=path).trainer
    console = standard_output()
    for name in settings:
        key = name.removeprefix("trainer.")
        old, new = (_shown(getattr(each, key)) for each in (before, after))
        changed = f"{new} (was {old})" if old != new else f"{new}, as before"
        console.print(f"{shown}: {name} is {changed}", highlight=False)
    console.print(
        f"{row.shares}. On a machine without that slice, `TFX_TPU_TRAINER_EMULATE=1 tfx-tpu-trainer run` emulates it.",
        highlight=False,
    )


def _shown(value: Any) -> str:
    if isinstance(value, TpuSpec):
        ways = [way for way in ("spot", "flex_start", "reservation") if getattr(value, way)]
        return " ".join([value.slice_name, *ways])
    return "not set" if value is None else f"{value:,}"
