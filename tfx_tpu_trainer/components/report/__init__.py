"""One page about a training, for people who would rather look than read: `run.html`, and its numbers, `run.json`.

    from tfx_tpu_trainer.components import report

    estimator.train(input_fn, max_steps=1000)
    estimator.evaluate(eval_input_fn)
    report.write(estimator)

`TpuTrainer` writes the page of each training; `tfx-tpu-trainer report` makes one of any folder of checkpoints, and of
a pipeline's run with what the gate said; `tfx-tpu-trainer compare` puts some side by side. Where a page comes from is
apart from how it looks: `gather` reads folders into `RunData`, `render` arranges that.
"""

from __future__ import annotations

from tfx_tpu_trainer._support.imports import of_extra

with of_extra("report", for_what="tfx_tpu_trainer.components.report"):
    from tfx_tpu_trainer.components.report._charts import Table
    from tfx_tpu_trainer.components.report._comparison import (
        compare,
        comparison_lines,
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
    "Lineage",
    "RunData",
    "Section",
    "Table",
    "Verdict",
    "compare",
    "comparison_lines",
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
