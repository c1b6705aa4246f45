"""What `tfx-tpu-trainer preflight --embeddings` does once its options are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfx_tpu_trainer._support.file_systems import check_can_be_written
from tfx_tpu_trainer._support.terminal import standard_output
from tfx_tpu_trainer.components.user_module import model_of_module
from tfx_tpu_trainer.preflight import (
    EmbeddingPlan,
    EmbeddingSpec,
    plan_embeddings,
    render_plan,
    write_plan,
)
from tfx_tpu_trainer.workbench.cli.preflight_run import (
    PreflightFailed,
    check_one_of_each,
    load_module_of,
    read_params,
    user_code,
)

_GOES_WITH = (
    *("embeddings", "tpu", "batch_size", "module_file", "module", "params", "json_file"),
    # The first has a default: nothing is compiled.
    *("timeout", "num_slices"),
)


def run(options: Mapping[str, Any]) -> bool:
    """Plans embeddings by the ids of their file, or of a module's input_fn."""
    _check(options)
    with user_code(options):
        plan = _plan(options)
        standard_output().print(render_plan(plan))
        if options["json_file"]:
            write_plan(plan, options["json_file"])
        return plan.ok


def _check(options: Mapping[str, Any]) -> None:
    others = [name for name, value in options.items() if value and name not in _GOES_WITH]
    if others:
        name = others[0].removesuffix("_file")
        raise PreflightFailed(
            f"--embeddings can't be combined with --{name}: leave one of them out."
        )
    if options["module_file"] and options["module"]:
        raise PreflightFailed("Give one of --module_file and --module, not both.")
    check_one_of_each(options)
    if options["json_file"] is not None:
        try:
            check_can_be_written("--json", options["json_file"])
        except ValueError as error:
            raise PreflightFailed(str(error)) from None


def _plan(options: Mapping[str, Any]) -> EmbeddingPlan:
    file = options["embeddings"]
    spec = EmbeddingSpec.read(file)
    params: Mapping[str, Any] | None = read_params(options["params"])
    ids: Any = spec.sources
    if options["module_file"] or options["module"]:
        if spec.sources:
            raise PreflightFailed(
                f'--embeddings {file} has "ids", and the module\'s input_fn has others: leave one of them out.'
            )
        model = model_of_module(load_module_of(options), params=params)
        ids, params = model.input_fns["train"], model.params
    elif not spec.sources:
        raise PreflightFailed(
            f'--embeddings {file}: the features have no "ids": add them to the file, or give a '
            "module with input_fn by --module_file or --module."
        )
    return plan_embeddings(
        features=spec.features,
        ids=ids,
        tpu=options["tpu"][0],
        num_slices=options["num_slices"],
        batch_size=options["batch_size"][0],
        optimizer=spec.optimizer,
        params=params,
        rows=spec.rows,
    )
