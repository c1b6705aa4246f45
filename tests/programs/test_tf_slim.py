import pytest


@pytest.mark.program(
    package="tf-slim==1.1.0", program="layers under an arg_scope, in a TPUEstimator"
)
@pytest.mark.parametrize("place", ["host", "2 cores", "8 cores"])
def test_slims_layers_train(case):
    case.drive("drive_tf_slim", "convolutions")


@pytest.mark.program(package="tf-slim==1.1.0", program="nets.resnet_v2 in a TPUEstimator")
@pytest.mark.parametrize("place", ["host", "2 cores", "8 cores"])
def test_slims_resnet_trains(case):
    case.drive("drive_tf_slim", "resnet")
