"""Libraries around estimators that are there: they wrap canned ones, build their own, or have columns for them."""

import pytest

from tests.programs.running import HandEdit


@pytest.mark.program(
    package="neural-structured-learning==1.4.0", program="estimator.add_adversarial_regularization"
)
@pytest.mark.parametrize("place", ["host"])
def test_adversarial_neighbours(case):
    case.drive("drive_structured", "adversarial")


@pytest.mark.program(
    package="neural-structured-learning==1.4.0", program="estimator.add_graph_regularization"
)
@pytest.mark.parametrize("place", ["host"])
def test_neighbours_of_a_graph(case):
    case.drive("drive_structured", "graph")


# TensorFlow's private module of feature columns has Keras's layer no more.
DENSE_FEATURES = HandEdit(
    file="tensorflow_ranking/python/feature.py",
    search="feature_column_lib.DenseFeatures(",
    replace="tf.compat.v1.keras.layers.DenseFeatures(",
)


@pytest.mark.program(
    package="tensorflow-ranking==0.2.3",
    program="model.make_groupwise_ranking_fn with a head",
    edit="by hand",
    edits=[DENSE_FEATURES],
)
@pytest.mark.parametrize("place", ["host"])
def test_a_groupwise_ranking(case):
    case.drive("drive_ranking")


@pytest.mark.program(package="tensorflow-hub==0.13.0", program="hub.Module in a TPUEstimator")
@pytest.mark.parametrize("place", ["host", "2 cores", "8 cores"])
def test_a_published_module_trains_on(case):
    case.drive("drive_hub", "module")


@pytest.mark.program(
    package="tensorflow-hub==0.13.0", program="text_embedding_column in a DNNClassifier"
)
@pytest.mark.parametrize("place", ["host"])
def test_a_column_of_a_published_module(case):
    case.drive("drive_hub", "column")


@pytest.mark.program(
    package="mesh-tensorflow==0.1.21",
    program="a network over a mesh in an Estimator, with Adafactor",
    needs=["gin-config==0.5.0"],
    edit="--repair",
    repaired=["mesh_tensorflow"],
)
@pytest.mark.parametrize("place", ["host"])
def test_a_network_over_a_mesh(case):
    case.drive("drive_mesh")


@pytest.mark.program(
    package="mesh-tensorflow==0.1.21",
    program="a network over a mesh in an Estimator, with Adafactor",
    needs=["gin-config==0.5.0"],
    edit="--fix",
    fix=["mesh_tensorflow/ops.py", "mesh_tensorflow/tpu_variables.py"],
)
@pytest.mark.parametrize("place", ["host"])
def test_a_network_over_a_mesh_once_it_is_fixed(case):
    case.drive("drive_mesh")
