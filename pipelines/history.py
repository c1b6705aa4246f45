"""`python -m pipelines.history FILE`: the runs in a metadata file, with each component's state, time and error."""

from __future__ import annotations

from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from pipelines import metadata
from pipelines.progress import STYLES
from tfx_tpu_trainer.printable import printable
from tfx_tpu_trainer.terminal import PlainConsole


@click.command()
@click.argument("metadata_file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--last",
    default=3,
    show_default=True,
    type=click.IntRange(min=1),
    help="How many runs to show.",
)
def main(metadata_file: Path, last: int) -> None:
    """Shows the newest runs in METADATA_FILE."""
    console = PlainConsole(soft_wrap=True)
    try:
        store = metadata.open_store(metadata_file)
        runs = metadata.run_names(store)
    except metadata.UnreadableError as error:
        raise click.ClickException(
            f"{printable(str(error))}; give the metadata.sqlite of a pipeline's root"
        ) from None
    for run in runs[-last:]:
        table = Table(title=f"run {run}", title_justify="left", show_edge=False, pad_edge=False)
        for heading in ("execution", "component", "state", "seconds", "outputs"):
            table.add_column(heading)
        for status in metadata.node_statuses(store, run).values():
            found = metadata.outputs(store, status.execution_id)
            detail = status.error or "  ".join(
                f"{key}: {artifact.uri}" for key, artifact in found.items()
            )
            table.add_row(
                str(status.execution_id),
                status.node,
                Text(status.state.value, style=STYLES.get(status.state, "")),
                f"{status.seconds:.1f}",
                detail,
            )
        console.print(table)


if __name__ == "__main__":
    main()
