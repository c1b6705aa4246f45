"""tf.contrib.summary, which host_call functions are written with."""

from __future__ import annotations

from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import Verdict
from tfx_tpu_trainer.compat.doctor.rules.advice import Advice, by_hand, moved

_THEME: Final = "summaries"
_SUMMARY: Final = "tensorflow.contrib.summary"
_SAYS: Final = (
    "TensorFlow 2 has no tf.contrib; its summaries are TensorFlow 2's, in tf.compat.v2.summary."
)


def _call(becomes: str, edit: str) -> Advice:
    return Advice(_THEME, Verdict.EDIT, _SAYS, edit=edit, becomes=becomes, calls_only=True)


RULES: Final[dict[str, Advice]] = {
    # create_file_writer(logdir, max_queue, flush_millis, filename_suffix, name) as before.
    f"{_SUMMARY}.create_file_writer": Advice(
        _THEME, Verdict.EDIT, _SAYS, becomes="tensorflow.compat.v2.summary.create_file_writer"
    ),
    **moved(
        _THEME,
        _SAYS,
        _SUMMARY,
        "tensorflow.compat.v2.summary",
        "create_summary_file_writer:create_file_writer flush should_record_summaries",
    ),
    f"{_SUMMARY}.initialize": Advice(
        _THEME, Verdict.EDIT, _SAYS, becomes="tensorflow.compat.v1.summary.initialize"
    ),
    f"{_SUMMARY}.all_summary_ops": Advice(
        _THEME, Verdict.EDIT, _SAYS, becomes="tensorflow.compat.v1.summary.all_v2_summary_ops"
    ),
    f"{_SUMMARY}.always_record_summaries": _call(
        "tensorflow.compat.v2.summary.record_if", "tf.compat.v2.summary.record_if(True)"
    ),
    f"{_SUMMARY}.never_record_summaries": _call(
        "tensorflow.compat.v2.summary.record_if", "tf.compat.v2.summary.record_if(False)"
    ),
    **{
        f"{_SUMMARY}.{kind}": _call(
            f"tensorflow.compat.v2.summary.{kind}",
            f"tf.compat.v2.summary.{kind}(name, data, step=step)",
        )
        for kind in ("scalar", "histogram", "image", "audio")
    },
    **by_hand(
        _THEME,
        _SUMMARY,
        {
            "": (_SAYS, "look for the name in tf.compat.v2.summary"),
            "generic": (_SAYS, "tf.compat.v2.summary.write(name, tensor, step=step)"),
            "create_tf_process_summary_writer": (
                _SAYS,
                "tf.compat.v2.summary.create_file_writer(folder)",
            ),
        },
    ),
}

MODULES: Final[dict[str, str]] = {}
