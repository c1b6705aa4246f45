"""`tfma.export` is back where TFMA is imported, before or after install()."""

import importlib
import sys

import tensorflow_model_analysis as tfma

from tfx_tpu_trainer import compat
from tfx_tpu_trainer.compat import tfma_export

NAMES = ("EvalInputReceiver", "build_parsing_eval_input_receiver_fn", "export_eval_savedmodel")


def test_tfma_export_is_back_and_goes_again():
    assert not hasattr(tfma, "export")
    with compat.install():
        names: dict = {}
        exec(
            "from tensorflow_model_analysis import export\n"
            "import tensorflow_model_analysis.export as imported\n"
            "from tensorflow_model_analysis.eval_saved_model import export as deeper\n"
            "from tensorflow_model_analysis.export import EvalInputReceiver\n",
            names,
        )
        for name in NAMES:
            for module in ("export", "imported", "deeper"):
                assert getattr(names[module], name) is getattr(tfma_export, name)
        assert tfma.export is names["export"]
        assert names["EvalInputReceiver"] is tfma_export.EvalInputReceiver
    assert not hasattr(tfma, "export")
    assert "tensorflow_model_analysis.export" not in sys.modules


def test_a_module_that_is_imported_later_has_it_too(monkeypatch):
    name = "tensorflow_model_analysis.eval_saved_model"
    importlib.import_module(name)
    monkeypatch.delitem(sys.modules, name)
    with compat.install():
        later = importlib.import_module(name)
        assert later.export.EvalInputReceiver is tfma_export.EvalInputReceiver
        assert type(later.__loader__).__module__ == "_frozen_importlib_external"
    assert not hasattr(later, "export")
