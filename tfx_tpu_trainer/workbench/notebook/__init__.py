"""Shows models, trainings, evaluations and blessings in a notebook.

%load_ext tfx_tpu_trainer.workbench.notebook

context = InteractiveContext()
context.run(trainer)  # the results, as a table
context.show(trainer.outputs["model_run"])  # the learning curve
"""

import os

from tfx_tpu_trainer._support.imports import of_extra

# Hides the start-up messages of TensorFlow's C++ code from the first cell.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

with of_extra("notebook", for_what="tfx_tpu_trainer.workbench.notebook"):
    from tfx_tpu_trainer.workbench.notebook.extension import (
        load_ipython_extension,
        register,
        unload_ipython_extension,
    )
    from tfx_tpu_trainer.workbench.notebook.pages import (
        blessing_page,
        evaluation_page,
        model_page,
        model_run_page,
        results_page,
        run_page,
    )

__all__ = [
    "blessing_page",
    "evaluation_page",
    "load_ipython_extension",
    "model_page",
    "model_run_page",
    "register",
    "results_page",
    "run_page",
    "unload_ipython_extension",
]
