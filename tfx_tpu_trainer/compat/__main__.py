"""`python -m tfx_tpu_trainer.compat PROGRAM [ARGS]`: runs a tf.estimator program unchanged."""

import importlib.util
import os
import sys
from collections.abc import Callable, Sequence

import click

from tfx_tpu_trainer._support.messages import printable
from tfx_tpu_trainer.compat._installation import install
from tfx_tpu_trainer.compat._program import program_to_run

_NAME = "python -m tfx_tpu_trainer.compat"
# Repeated from estimator/places/choice.py, whose import would import TensorFlow.
_REPLICAS = "TFX_TPU_TRAINER_EMULATED_REPLICAS"


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--emulate",
    metavar="[N]",
    type=click.IntRange(1, 1024),
    help=(
        "Emulates TPU cores, and satisfies every TPUClusterResolver; N (default 8) replicas if "
        "the program does not set their number. TFX_TPU_TRAINER_EMULATE=1 does the same."
    ),
)
@click.option(
    "--repair",
    is_flag=True,
    help=(
        "Makes the edits of `tfx-tpu-trainer doctor --fix` in memory while the program's modules "
        "are imported; no file changes."
    ),
)
@click.option(
    "--show-repairs", is_flag=True, help="Implies --repair, and prints the edits to stderr."
)
@click.option(
    "--repair-package",
    "packages",
    metavar="NAME",
    multiple=True,
    help="Also repairs the modules of an installed package; repeatable.",
)
@click.option("-m", "module", metavar="MODULE", help="Runs a module instead of PROGRAM.")
@click.argument("words", metavar="[PROGRAM] [ARGS]...", nargs=-1, type=click.UNPROCESSED)
def main(
    emulate: int | None,
    repair: bool,
    show_repairs: bool,
    packages: Sequence[str],
    module: str | None,
    words: Sequence[str],
) -> Callable[[], int]:
    """Runs a program that uses tf.estimator, unedited.

    PROGRAM is a file, a folder or an archive, as for python. While it runs, the names that TensorFlow 2.16 removed are
    back; docs/compat.md lists them.
    """
    if module is None and not words:
        raise click.UsageError("name a program, or a module with -m.")
    if module is None and not os.path.exists(words[0]):
        raise click.UsageError(f"can't open the program {words[0]!r}: no such file or folder.")
    if module is None and words[0].endswith(".ipynb"):
        raise click.UsageError(
            f"{words[0]} is a notebook. Convert it to a program first: jupyter nbconvert --to "
            f"script {words[0]}"
        )
    # Looking up the full name would import the package too early.
    if module is not None and not _is_there(module.partition(".")[0]):
        raise click.UsageError(f"can't find the module {module!r}: check its name and PYTHONPATH.")
    for package in packages:
        if not _is_there(package.partition(".")[0]):
            raise click.UsageError(
                f"can't find the package {package!r} to repair: check its name, or install it."
            )
    if emulate is not None:
        os.environ[_REPLICAS] = str(emulate)
    try:
        install(emulate=None if emulate is None else True)
    except RuntimeError as error:
        raise click.ClickException(str(error)) from error
    return program_to_run(
        words,
        module=module,
        repair=repair or show_repairs or bool(packages),
        packages=packages,
        shown=show_repairs,
    )


def separate(words: Sequence[str]) -> list[str]:
    """Separates this command's arguments from the program's."""
    ours, rest = [], list(words)
    while rest and rest[0].startswith("-") and rest[0] != "--":
        word = rest.pop(0)
        if word == "--emulate":
            given = rest.pop(0) if rest and rest[0].isdecimal() else None
            word = f"--emulate={given or os.environ.get(_REPLICAS) or 8}"
        ours.append(word)
        if word == "--repair-package" and rest:
            ours.append(rest.pop(0))
        if word == "-m":
            return [*ours, rest[0], "--", *rest[1:]] if rest else ours
        if word.startswith("-m"):
            break
    if rest[:1] == ["--"]:
        rest.pop(0)
    return [*ours, "--", *rest]


def _is_there(package: str) -> bool:
    return bool(package) and importlib.util.find_spec(package) is not None


def _main() -> int:
    try:
        run = main.main(separate(sys.argv[1:]), prog_name=_NAME, standalone_mode=False)
    except click.ClickException as error:
        print(f"{_NAME}: {printable(error.format_message())}", file=sys.stderr)
        return error.exit_code
    # Outside the command, so a program that uses click finds no context of this one.
    return run() if callable(run) else 0


if __name__ == "__main__":
    sys.exit(_main())
