"""Makes the peers' virtual environments: `.make/oracle` of the original, `.make/jax` of JAX."""

from pathlib import Path

import click

from tfx_tpu_trainer.workbench.prove.environment import (
    LOCK,
    EnvironmentFailedError,
    make_environment,
)

REPOSITORY = Path(__file__).parents[1]


def oracle_python() -> Path:
    """Returns the interpreter of the original's environment, which is made if missing."""
    return _python_of("oracle", LOCK, "TensorFlow 2.15.1 (1.7 GB, once")


def jax_python() -> Path:
    """Returns the interpreter of JAX's environment, which is made if missing."""
    lock = REPOSITORY / "requirements" / "jax-oracle.lock"
    return _python_of("jax", lock, "JAX 0.6.2 (0.5 GB, once")


def _python_of(name: str, lock: Path, what: str) -> Path:
    try:
        return make_environment(REPOSITORY / ".make" / name, lock, what, say=click.echo)
    except EnvironmentFailedError as error:
        hint = "To do without the original, leave `real` out of --contenders."
        raise click.ClickException(f"{error}. {hint}") from None
