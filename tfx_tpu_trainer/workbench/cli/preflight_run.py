"""Runs `tfx-tpu-trainer preflight` with its parsed options."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import math
import os
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from tfx_tpu_trainer._support.file_systems import check_can_be_written
from tfx_tpu_trainer._support.messages import is_of_this_package
from tfx_tpu_trainer._support.terminal import standard_output
from tfx_tpu_trainer.components.user_module import (
    FeatureSpec,
    exits_are_errors,
    imported_from,
    load_file,
    load_module,
    model_of_module,
)
from tfx_tpu_trainer.hardware import TpuSpec
from tfx_tpu_trainer.preflight import (
    LONGEST_SECONDS,
    CompilerOptions,
    LoweredStep,
    PreflightModel,
    PreflightReport,
    Prices,
    Sweep,
    TrainingCost,
    TrainingLength,
    check_slices,
    compile_and_report,
    libtpu_version,
    lower_saved_model,
    measure_input,
    preflight_function,
    print_report,
    read_duration,
    render_costs,
    render_sweep,
    sweep,
    training_cost,
    write_html,
    write_json,
    write_sweep,
)
from tfx_tpu_trainer.workbench.cli.preflight_project import (
    check_choice,
    completed,
    project_of,
    write_choice,
)

if TYPE_CHECKING:
    from tfx_tpu_trainer.estimator.tpu import RunConfig
    from tfx_tpu_trainer.workbench.project.project import Project

STEPS = ("train", "eval", "predict", "serve")

_LENGTHS = ("rows_per_epoch", "epochs", "train_steps")
_ASSUMED = {
    "start_up": "start_up_seconds",
    "preempted_every": "preempted_every",
    "queue_time": "queue_seconds",
}
_OF_COST = (*_LENGTHS, "deadline", *_ASSUMED)

_LIBRARIES = f"{os.sep}site-packages{os.sep}"


class PreflightFailed(click.ClickException):
    """No report could be made; has its own exit code."""

    exit_code = 2


def run(options: Mapping[str, Any]) -> bool:
    """Runs the command."""
    with _user_code(options) as project:
        if options["choose"]:
            check_choice(options, project)
            options = {**options, "sweep": True}
        if project is not None:
            options = completed(options, project)
        steps = _steps(options)
        _check(options, steps)
        # Checked before TensorFlow is imported: nothing works without a compiler.
        compiler = libtpu_version(options["libtpu_path"])
        if options["function"]:
            report = _of_function(options)
            print_report(report)
            _write(report, options, cost=None)
            return report.ok
        model = _model(options, steps)
        if options["sweep"]:
            found = _sweep(options, model, steps)
            if options["choose"] and project is not None:
                write_choice(found, options, project)
                return True
            # Among slices that nobody has named, one that fits is enough.
            return found.ok or (bool(options.get("own_slices")) and any(found.largest.values()))
        report = _with_input(_report(options, model, steps, compiler), options, model)
        print_report(report)
        cost = _cost(report, options)
        if cost is not None:
            standard_output().print(render_costs([cost], deadline=_deadline(options)))
        _write(report, options, cost)
        return report.ok


@contextlib.contextmanager
def _user_code(options: Mapping[str, Any]) -> Iterator[Project | None]:
    """Lets a block import and run the options' modules; its errors are one line each. Yields the project, if any."""
    file = options["module_file"]
    code = file or options["module"] or options["function"]
    with _errors_in_one_line(code), contextlib.ExitStack() as folders:
        project = project_of(options)
        below = project.import_root if project is not None else file and os.path.dirname(file)
        # As with TFX: a model imports from its own folder and from the working directory.
        for folder in (os.getcwd(), None if below is None else os.path.abspath(below)):
            if folder:
                folders.enter_context(imported_from(folder))
        folders.enter_context(exits_are_errors(code or "the model"))
        yield project


def _steps(options: Mapping[str, Any]) -> tuple[str, ...]:
    given = options["steps"]
    if given is None:
        if options["sweep"]:
            return ("train",)
        of_model = STEPS[:3] if options["module_file"] or options["module"] else ()
        return (*of_model, *(STEPS[3:] if options["saved_model"] else ()))
    unknown = [step for step in given if step not in STEPS]
    if unknown or not given:
        raise PreflightFailed(f"--steps {','.join(given)}: give any of {','.join(STEPS)}.")
    return tuple(dict.fromkeys(given))


def _check(options: Mapping[str, Any], steps: Sequence[str]) -> None:
    """Checks the options as far as possible without reading files."""
    of_model = [step for step in steps if step != "serve"]
    if options["module_file"] and options["module"]:
        raise PreflightFailed("Give one of --module_file and --module, not both.")
    if options["function"]:
        _check_function(options)
    elif not steps or (of_model and not (options["module_file"] or options["module"])):
        raise PreflightFailed(
            "Nothing to compile: give a module with model_fn (--module_file or --module), an "
            "exported model (--saved_model), or a project (--project or --pipeline)."
        )
    if "serve" in steps and not options["saved_model"]:
        raise PreflightFailed("The serve step needs an exported model: give --saved_model.")
    if not math.isfinite(options["timeout"]):
        raise PreflightFailed(
            f"--timeout {options['timeout']}: give a number of seconds, such as 300."
        )
    if options["effort"] is not None and not -1 <= options["effort"] <= 1:
        raise PreflightFailed(f"--effort {options['effort']:g}: give a number from -1 to 1.")
    profile = options["profile"]
    for name, path in (
        ("json", options["json_file"]),
        ("html", options["html_file"]),
        ("profile", profile and os.path.join(profile, "plugins")),
    ):
        if path is not None:
            check_can_be_written(f"--{name}", path)
    if options["transform_output"] and options["feature_spec"]:
        raise PreflightFailed("Give one of --transform_output and --feature_spec, not both.")
    if options["num_slices"] > 1 and (options["sweep"] or "serve" in steps):
        raise PreflightFailed("--num_slices can't be combined with --sweep or with the serve step.")
    _check_price(options, steps)
    seconds = options["measure_input"]
    if seconds is not None and not 0 < seconds <= LONGEST_SECONDS:
        raise PreflightFailed(
            f"--measure_input {seconds:g}: give a number of seconds above 0, at most "
            f"{LONGEST_SECONDS:g}."
        )
    if seconds is not None and ("train" not in steps or options["feature_spec"]):
        raise PreflightFailed(
            "--measure_input reads the module's own input_fn in the train step: leave "
            "--feature_spec out, and include train in --steps."
        )
    if seconds is not None and options["transform_output"]:
        raise PreflightFailed(
            "--measure_input reads the module's own input_fn: leave --transform_output out."
        )
    for name, example in (("tpu", "v5e:2x4"), ("batch_size", "1024")):
        if options[name] is None:
            raise PreflightFailed(
                f"--{name} is missing: give it, such as --{name} {example}, or run the command in a project."
            )
    if options["sweep"]:
        if seconds is not None or profile:
            raise PreflightFailed(
                "--sweep can't be combined with --measure_input or --profile: leave one of them "
                "out."
            )
        if "serve" in steps:
            raise PreflightFailed(
                "--sweep compiles only train, eval and predict: leave serve out of --steps."
            )
        return
    if not options["tpu"]:
        raise PreflightFailed("--tpu is empty: give a slice, such as v5e:2x4.")
    for name in ("tpu", "batch_size"):
        if len(options[name]) != 1:
            values = ",".join(map(str, options[name]))
            raise PreflightFailed(
                f"--{name} {values}: give one value, or add --sweep to try them all."
            )


def _check_function(options: Mapping[str, Any]) -> None:
    others = "module_file module saved_model steps sweep input_partition_dims profile"
    given = [name for name in others.split() if options[name]]
    if given:
        raise PreflightFailed(
            f"--function can't be combined with --{given[0]}: leave one of them out."
        )
    if not all(options["function"].partition(":")):
        raise PreflightFailed(
            f"--function {options['function']!r}: give a module and a name in it, such as "
            "my.module:step."
        )


def _of_function(options: Mapping[str, Any]) -> PreflightReport:
    module, _, name = options["function"].partition(":")
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise PreflightFailed(
            f"--function {options['function']}: the module {error.name!r} can't be found; run from "
            "the folder that contains it, or add that folder to PYTHONPATH."
        ) from None
    function = getattr(imported, name, None)
    if function is None:
        raise PreflightFailed(f"--function {options['function']}: the module has no {name!r}.")
    return preflight_function(
        function,
        tpu=options["tpu"][0],
        num_slices=options["num_slices"],
        batch_size=options["batch_size"][0],
        num_cores_per_replica=int(options["num_cores_per_replica"] or 1),
        name=name,
        options=_compiler_options(options),
    )


def _check_price(options: Mapping[str, Any], steps: Sequence[str]) -> None:
    """Reads prices, length and deadline: a mistake there is found before anything is compiled."""
    given = [name for name in _OF_COST if options[name] is not None]
    if options["price_file"] is None and given and not options["sweep"]:
        raise PreflightFailed(f"--{given[0]} needs --price: give a price file.")
    if options["price_file"] is not None and "train" not in steps:
        raise PreflightFailed("--price needs the train step: include train in --steps.")
    prices = _prices(options)
    _length(options)
    _deadline(options)
    _assumed(options)
    if prices is not None:
        for name in options["tpu"]:
            prices.of_slice(TpuSpec.read(name).tpu_slice.name)


def _length(options: Mapping[str, Any]) -> TrainingLength | None:
    """Returns the given length, else the project's; `None` if neither is needed."""
    if not any(options[name] is not None for name in _LENGTHS):
        if (declared := options.get("declared_length")) is not None:
            return TrainingLength(train_steps=declared[0], rows_per_step=declared[1])
        if options["price_file"] is None and options["deadline"] is None:
            return None
    return TrainingLength(**{name: options[name] for name in _LENGTHS})


def _prices(options: Mapping[str, Any]) -> Prices | None:
    return None if options["price_file"] is None else Prices.read(options["price_file"])


def _assumed(options: Mapping[str, Any]) -> dict[str, float]:
    return {
        argument: read_duration(options[name], option=f"--{name}")
        for name, argument in _ASSUMED.items()
        if options[name] is not None
    }


def _deadline(options: Mapping[str, Any]) -> float | None:
    return None if options["deadline"] is None else read_duration(options["deadline"])


def _model(options: Mapping[str, Any], steps: Sequence[str]) -> PreflightModel | None:
    if set(steps) <= {"serve"}:
        return None
    spec = None
    if options["transform_output"]:
        spec = FeatureSpec.of_transform(options["transform_output"], label_key=options["label_key"])
    elif options["feature_spec"]:
        spec = FeatureSpec.read(options["feature_spec"], label_key=options["label_key"])
    file = options["module_file"]
    module = load_file(file) if file else load_module(options["module"])
    features = options.get("features")
    if features is not None and (module.input_fn is None or module.input_fn_wants_fn_args):
        spec = features(options["label_key"])
    example = "a JSON object, such as '{\"rate\": 0.1}'"
    params = _json("params", options["params"], kind=dict, example=example)
    if (declared := options.get("declared_params")) is not None:
        params = {**declared, **(params or {})}
    model = model_of_module(module, spec=spec, params=params)
    return dataclasses.replace(
        model, config=_config(options), name=options.get("model_name", model.name)
    )


def _config(options: Mapping[str, Any]) -> RunConfig | None:
    cores, dims = options["num_cores_per_replica"], options["input_partition_dims"]
    if cores is None and dims is None:
        return None
    if cores is None:
        raise PreflightFailed("--input_partition_dims needs --num_cores_per_replica: give both.")
    example = "a JSON list for features and labels, such as '[{\"image\": [1, 4, 1]}, null]'"
    # A missing extra must be reported before TensorFlow's own messages.
    from tfx_tpu_trainer.estimator.tpu import InputPipelineConfig, RunConfig, TPUConfig

    return RunConfig(
        tpu_config=TPUConfig(
            num_cores_per_replica=int(cores),
            input_partition_dims=_json("input_partition_dims", dims, kind=list, example=example),
            # PER_HOST_V2 supports partitions; for one host it is like the others.
            per_host_input_for_training=InputPipelineConfig.PER_HOST_V2,
        )
    )


def _json(name: str, text: str | None, *, kind: type, example: str) -> Any:
    if text is None:
        return None
    try:
        values = json.loads(text)
        # Python's reader accepts NaN and infinity, which JSON lacks.
        json.dumps(values, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise PreflightFailed(
            f"--{name} {text[:200]!r} is not valid JSON ({error}): give {example}."
        ) from None
    if not isinstance(values, kind):
        raise PreflightFailed(f"--{name} {text[:200]!r}: give {example}.")
    return values


def _report(
    options: Mapping[str, Any], model: PreflightModel | None, steps: Sequence[str], compiler: str
) -> PreflightReport:
    spec, num_slices = TpuSpec.read(options["tpu"][0]), options["num_slices"]
    check_slices(spec.tpu_slice, num_slices)
    rows = options.get("rows") or dict.fromkeys(STEPS, options["batch_size"][0])
    lowered: list[LoweredStep] = []
    if model is not None:
        of_model = [step for step in steps if step != "serve"]
        lowered += model.lower(
            of_model,
            batch_sizes=rows,
            spec=spec,
            num_slices=num_slices,
        )
    if "serve" in steps:
        lowered += lower_saved_model(options["saved_model"], batch_size=rows["serve"])
    return compile_and_report(
        lowered,
        tpu_slice=spec.tpu_slice,
        num_slices=num_slices,
        name=model.name if model is not None else options["saved_model"],
        compiler=compiler,
        options=_compiler_options(options),
        profile=options["profile"],
    )


def _with_input(
    report: PreflightReport, options: Mapping[str, Any], model: PreflightModel | None
) -> PreflightReport:
    if options["measure_input"] is None:
        return report
    assert model is not None  # required by the step train
    speed = measure_input(
        model.input_fns["train"],
        tpu_slice=report.tpu_slice,
        batch_size=options["batch_size"][0],
        seconds=options["measure_input"],
        params=model.params,
        config=model.config,
    )
    return dataclasses.replace(report, input=speed)


def _cost(report: PreflightReport, options: Mapping[str, Any]) -> TrainingCost | None:
    """Returns the training's cost; `None` if not requested, or if it can't train."""
    prices, length = _prices(options), _length(options)
    trains = any(step.name == "train" and step.ok for step in report.steps)
    if prices is None or length is None or not trains:
        return None
    start_up = {
        name: each for name, each in _assumed(options).items() if name == "start_up_seconds"
    }
    return training_cost(report, length, prices, **start_up)


def _sweep(options: Mapping[str, Any], model: PreflightModel | None, steps: Sequence[str]) -> Sweep:
    assert model is not None  # --sweep requires steps of a model
    console = standard_output()
    entries = []
    for entry in sweep(
        model,
        tpus=options["tpu"],
        batch_sizes=options["batch_size"],
        steps=steps,
        options=_compiler_options(options),
    ):
        console.print(f"{entry.tpu} {entry.batch_size:,}: {entry.outcome}", style="dim")
        entries.append(entry)
    found = Sweep(
        model=model.name,
        steps=tuple(steps),
        entries=tuple(entries),
        length=_length(options),
        prices=_prices(options),
        deadline=_deadline(options),
        **_assumed(options),
    )
    console.print(render_sweep(found))
    if options["json_file"]:
        write_sweep(found, options["json_file"])
    if options["html_file"]:
        write_html(found, options["html_file"])
    _say_page(options)
    return found


def _write(report: PreflightReport, options: Mapping[str, Any], cost: TrainingCost | None) -> None:
    if options["json_file"]:
        write_json(report, options["json_file"], cost=cost)
    if options["html_file"]:
        write_html(report, options["html_file"], cost=cost)
    _say_page(options)


def _say_page(options: Mapping[str, Any]) -> None:
    """Prints the path of a page that the user did not name."""
    if options.get("own_page"):
        path = options["html_file"]
        standard_output().print(
            f"The page: {path if '://' in path else os.path.relpath(path)}",
            highlight=False,
            soft_wrap=True,
        )


def _compiler_options(options: Mapping[str, Any]) -> CompilerOptions:
    return CompilerOptions(
        libtpu_path=options["libtpu_path"],
        timeout_seconds=options["timeout"],
        effort=options["effort"],
    )


@contextlib.contextmanager
def _errors_in_one_line(module: str | None) -> Iterator[None]:
    """Turns errors into one line each; errors in the user's code name their line."""
    try:
        yield
    except click.ClickException:
        raise
    except Exception as error:
        message = " ".join(str(error).split())
        frames = traceback.extract_tb(error.__traceback__)
        ours = isinstance(error, (ValueError, TypeError, KeyError, RuntimeError, OSError))
        if ours and is_of_this_package(frames[-1].filename):
            raise PreflightFailed(message) from None
        line = next(
            (
                f" (at {frame.filename}:{frame.lineno}: {frame.line})"
                for frame in reversed(frames)
                if not is_of_this_package(frame.filename) and _LIBRARIES not in frame.filename
            ),
            "",
        )
        raise PreflightFailed(
            f"{module or 'the model'} fails: {type(error).__name__}: {message}{line}"
        ) from error
