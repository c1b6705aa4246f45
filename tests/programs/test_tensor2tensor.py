import pytest

from tests.programs.running import HandEdit

EDITS = [
    # Looked up also where a TPUEstimator's is used.
    HandEdit(
        file="tensor2tensor/utils/trainer_lib.py",
        search="run_config_cls = contrib.learn().RunConfig\n",
        replace="run_config_cls = tf.estimator.RunConfig\n",
    ),
    # Its data is read by slim's parallel_reader, which is in the package tf_slim only.
    HandEdit(
        file="tensor2tensor/utils/contrib.py",
        search="from tensorflow.contrib import slim as tf_slim",
        replace="import tf_slim",
    ),
]


@pytest.mark.program(
    package="tensor2tensor==1.15.7",
    program="Transformer by its trainer_lib, in a TPUEstimator",
    needs=[
        "tf-slim==1.1.0",
        "mesh-tensorflow==0.1.21",
        "tensorflow-gan==2.1.0",
        "tensorflow-datasets==1.3.2",
        "tensorflow-probability==0.24.0",
        "dm-tree==0.1.10",
        "gin-config==0.5.0",
        "gym==0.17.3",
        "promise==2.3",
    ],
    edit="by hand",
    repaired=["mesh_tensorflow"],
    edits=EDITS,
)
@pytest.mark.parametrize("place", ["host", "2 cores"])
def test_a_transformer_trains(case):
    case.drive("drive_t2t")
