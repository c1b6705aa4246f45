"""Runs `tfx-tpu-trainer preflight` in a project: its config gives the options, and `--choose` changes it."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tfx_tpu_trainer._support.messages import in_one_line
from tfx_tpu_trainer._support.terminal import standard_output
from tfx_tpu_trainer.hardware import TpuSpec, known_slices
from tfx_tpu_trainer.preflight import Prices, Sweep
from tfx_tpu_trainer.workbench.cli.runs import (
    check_one_project,
    find_project,
    quiet_tensorflow,
    runner_extra,
)
from tfx_tpu_trainer.workbench.project.config import ConfigError, PipelineConfig
from tfx_tpu_trainer.workbench.project.config_file import change_config

if TYPE_CHECKING:
    from tfx_tpu_trainer.components.user_module import FeatureSpec
    from tfx_tpu_trainer.workbench.project.project import Project
    from tfx_tpu_trainer.workbench.project.training import DeclaredTraining

_PROJECT = ("folder", "name", "config_file")
_INSTEAD = ("module_file", "module", "function")
# Chips on which TensorFlow trains and that anyone can order.
_SWEPT = ("v5e", "v6e", "v5p")
_FOLDER = "preflight"
# The config must set these itself, or the choice would be for another training.
_OF_THE_CONFIG = {
    "rows_per_epoch": "trainer.train_steps",
    "epochs": "trainer.train_steps",
    "train_steps": "trainer.train_steps",
    "num_cores_per_replica": "trainer.num_cores_per_replica",
    "input_partition_dims": "trainer.num_cores_per_replica",
}


def project_of(options: Mapping[str, Any]) -> Project | None:
    """Finds the project whose model is meant: the named one, or the working directory's; `None` for another model."""
    check_one_project(options["folder"], options["name"])
    named = any(options[key] for key in _PROJECT)
    instead = next((key for key in _INSTEAD if options[key]), None)
    if instead and named:
        raise click.UsageError(
            f"--{instead} names a model, and so does a project; give one of them"
        )
    here = all(os.path.isfile(name) for name in ("config.yaml", "pipeline.py"))
    if not named and (not here or instead or options["saved_model"]):
        return None
    # Other models need no TFX.
    with runner_extra():
        return find_project(options["folder"], options["name"])


def completed(options: Mapping[str, Any], project: Project) -> dict[str, Any]:
    """Fills in missing options from the project's config and pipeline, and prints where they come from."""
    if options["measure_input"] is not None:
        raise ValueError(
            "--measure_input reads a module's own input_fn; a project's training measures its input "
            "itself: run it with --set trainer.tpu=v5e:2x4 --set trainer.preflight=warn"
        )
    config = project.config(config_file=options["config_file"])
    with quiet_tensorflow(), runner_extra():
        from tfx_tpu_trainer.workbench.project.training import declared_training

        training = declared_training(project, config)
    settings = training.settings
    tpus = _slices(training, options)
    if options["choose"]:
        tpus = possible_slices(options["tpu"] or tpus, options, project, config)
    source = os.path.relpath(training.module_file) if training.module_file else training.module
    standard_output().print(
        f"The model_fn of {source}, with the params and batch sizes of the pipeline {config.name}.",
        style="dim",
        highlight=False,
    )
    known: dict[str, Any] = {
        "model_name": config.name,
        "module": training.module,
        "module_file": training.module_file,
        "label_key": settings.label_key,
        "num_cores_per_replica": settings.num_cores_per_replica,
        "tpu": tpus,
    }
    if not options["batch_size"]:
        predicted = settings.rows_per_predict_batch
        known["rows"] = {
            "train": settings.train_batch_size,
            "eval": settings.rows_per_eval_batch,
            "predict": predicted,
            "serve": predicted,
        }
        known["batch_size"] = (settings.train_batch_size,)
    if not any(options[key] for key in ("rows_per_epoch", "epochs", "train_steps")):
        known["declared_length"] = (training.train_steps, settings.train_batch_size)
    if not (options["transform_output"] or options["feature_spec"]):
        known["features"] = lambda label_key: _features(training, project, label_key)
    known["own_slices"] = options["tpu"] is None
    known["own_page"] = options["html_file"] is None
    known["html_file"] = f"{config.root}/{_FOLDER}/{_page(options, known)}"
    given = {key: value for key, value in options.items() if value is not None}
    if options["choose"]:
        given["tpu"] = tpus
    return {**options, **known, **given, "declared_params": settings.params}


def _slices(training: DeclaredTraining, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the config's slice; in a sweep also what one machine of today's chips has, if a price is known."""
    own = training.settings.tpu and training.settings.tpu.tpu_slice.name
    if not options["sweep"]:
        if own is None and not options["tpu"]:
            raise ValueError(
                "no slice is named: give --tpu v5e:2x4, or set trainer.tpu in the config"
            )
        return (own,) if own else ()
    price = options["price_file"]
    chips = Prices.read(price).chip_hour if price and not options["tpu"] else _SWEPT
    found = [each for each in known_slices() if each.hosts == 1]
    swept = [
        each.name
        for chip in _SWEPT
        for each in found
        if each.chip.generation == chip and chip in chips
    ]
    return tuple(dict.fromkeys([*([own] if own else []), *swept]))


def _page(options: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    if options["sweep"]:
        return "sweep.html"
    name = (options["tpu"] or known["tpu"])[0]
    return f"{name.replace(':', '-').replace(os.sep, '-')}.html"


def _features(training: DeclaredTraining, project: Project, label_key: str | None) -> FeatureSpec:
    """Reads the features from the last run's Transform, or works them out from the project's schema."""
    from tfx_tpu_trainer.components.user_module import FeatureSpec
    from tfx_tpu_trainer.workbench.project.training import WORDS_WITHOUT_A_DOMAIN

    console = standard_output()
    found = training.transform_output()
    if found is not None:
        output, run = found
        console.print(
            f"Its features: Transform's output of the run {run}.",
            style="dim",
            highlight=False,
        )
        return FeatureSpec.of_transform(output, label_key=label_key)
    command = " ".join(
        ["tfx-tpu-trainer run", *(project.words if Path.cwd() != project.folder else [])]
    )
    otherwise = f"run the project once ({command}), or give --transform_output or --feature_spec"
    schema = training.schema_file()
    if schema is None:
        raise ValueError(
            "the model's input is unknown: no run has completed Transform yet, and the project keeps no schema; "
            f"{otherwise}"
        )
    console.print(
        f"Its features: from {os.path.relpath(schema)}, as no run has completed Transform yet; a "
        f"column of words without a domain counts as {WORDS_WITHOUT_A_DOMAIN} words.",
        style="dim",
        highlight=False,
    )
    with quiet_tensorflow():
        try:
            return training.features_by_schema(schema, label_key=label_key)
        # A preprocessing_fn may raise anything on made-up rows.
        except Exception as error:
            reason = in_one_line(error)[:300]
            raise ValueError(
                f"the model's input can't be derived from {schema} ({reason}); {otherwise}"
            ) from None


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
