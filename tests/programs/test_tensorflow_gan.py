import pytest

NEEDS = ["tensorflow-probability==0.24.0", "dm-tree==0.1.10"]


@pytest.mark.program(
    package="tensorflow-gan==2.1.0", program="tfgan.estimator.GANEstimator", needs=NEEDS
)
@pytest.mark.parametrize("place", ["host"])
def test_a_gan_trains(case):
    case.drive("drive_tf_gan", "GANEstimator")


@pytest.mark.program(
    package="tensorflow-gan==2.1.0", program="tfgan.estimator.TPUGANEstimator", needs=NEEDS
)
@pytest.mark.parametrize("place", ["host", "2 cores", "8 cores"])
def test_a_gan_trains_in_turns(case):
    case.drive("drive_tf_gan", "TPUGANEstimator")
