"""Makes a page about a training, `run.html`, and a file with its numbers, `run.json`.

    from tfx_tpu_trainer.components import report

    estimator.train(input_fn, max_steps=1000)
    estimator.evaluate(eval_input_fn)
    report.write(estimator)

`TpuTrainer` writes a page for each training; `tfx-tpu-trainer report` writes one for any folder of checkpoints, or for
a pipeline's run with the gate's verdict; `tfx-tpu-trainer compare` puts runs side by side. Reading and drawing are
separate: `gather` reads folders into `RunData`, `render` draws it. Names are imported on
first use, so two `run.json` files can be compared without importing TensorFlow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfx_tpu_trainer._support.imports import lazy_names

if TYPE_CHECKING:
    from tfx_tpu_trainer.components.report._charts import Table
    from tfx_tpu_trainer.components.report._comparison import (
        Comparison,
        compare,
        comparison_sections,
        render_comparison,
    )
    from tfx_tpu_trainer.components.report._gathering import gather, gather_folder
    from tfx_tpu_trainer.components.report._model_card import make_model_card, write_model_card
    from tfx_tpu_trainer.components.report._page import (
        PAGE_FILE,
        render,
        versions,
        write,
        write_page,
    )
    from tfx_tpu_trainer.components.report._run_data import (
        Lineage,
        RunData,
        Verdict,
        read_run_data,
        write_run_data,
    )
    from tfx_tpu_trainer.components.report._sections import Section, render_sections

__all__ = [
    "PAGE_FILE",
    "Comparison",
    "Lineage",
    "RunData",
    "Section",
    "Table",
    "Verdict",
    "compare",
    "comparison_sections",
    "gather",
    "gather_folder",
    "make_model_card",
    "read_run_data",
    "render",
    "render_comparison",
    "render_sections",
    "versions",
    "write",
    "write_model_card",
    "write_page",
    "write_run_data",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "._charts": ["Table"],
        "._comparison": ["Comparison", "compare", "comparison_sections", "render_comparison"],
        "._gathering": ["gather", "gather_folder"],
        "._model_card": ["make_model_card", "write_model_card"],
        "._page": ["PAGE_FILE", "render", "versions", "write", "write_page"],
        "._run_data": ["Lineage", "RunData", "Verdict", "read_run_data", "write_run_data"],
        "._sections": ["Section", "render_sections"],
    },
    extra="report",
)
