"""Starts a component in a container as TFX does, once TFX knows what the type `system.HTML` is.

    python -m tfx_tpu_trainer.orchestration.pod_entry --executor_class_path=... (TFX's own arguments)

TFX reads the types of a task's artifacts before it imports the component's executor, which therefore can't tell it.
"""

from __future__ import annotations

import runpy

from tfx_tpu_trainer.orchestration.html_page import HTML_TITLE, HtmlFile
from tfx_tpu_trainer.orchestration.tfx_private import RUN_EXECUTOR, TITLE_TO_CLASS_PATH


def know_html() -> None:
    """Tells TFX which class artifacts of the type `system.HTML` have."""
    TITLE_TO_CLASS_PATH[HTML_TITLE] = f"{HtmlFile.__module__}.{HtmlFile.__qualname__}"


def main() -> None:
    """Does what TFX's own module does, with the arguments of this process."""
    know_html()
    runpy.run_module(RUN_EXECUTOR, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
