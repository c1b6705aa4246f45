import pytest

from tests.programs.running import HandEdit

ADANET = {"package": "adanet==0.9.0"}
# A TPUEstimator refuses tensors without a batch dimension in a host_call, and AdaNet's of TensorFlow 2 has none.
SCALARS = HandEdit(
    file="adanet/core/summary.py",
    search="""data=tensor, description=description, step=step)

    self._create_summary(_summary_fn, name,
                         tf.reshape(tf.convert_to_tensor(value=tensor), []))""",
    replace="""data=tf.reduce_mean(tensor), description=description, step=step)

    self._create_summary(_summary_fn, name,
                         tf.reshape(tf.convert_to_tensor(value=tensor), [1]))""",
)


@pytest.mark.program(**ADANET, program="adanet.Estimator")
@pytest.mark.parametrize("place", ["host"])
def test_an_ensemble_grows(case):
    case.drive("drive_adanet", "Estimator")


@pytest.mark.program(**ADANET, program="adanet.AutoEnsembleEstimator of canned estimators")
@pytest.mark.parametrize("place", ["host"])
def test_an_ensemble_of_canned_estimators(case):
    case.drive("drive_adanet", "AutoEnsembleEstimator")


@pytest.mark.program(**ADANET, program="adanet.TPUEstimator")
@pytest.mark.parametrize("place", ["host"])
def test_an_ensemble_grows_by_its_tpu_estimator(case):
    case.drive("drive_adanet", "TPUEstimator")


@pytest.mark.program(**ADANET, program="adanet.TPUEstimator", edit="by hand", edits=[SCALARS])
@pytest.mark.parametrize("place", ["2 cores", "8 cores"])
def test_an_ensemble_grows_on_cores(case):
    case.drive("drive_adanet", "TPUEstimator")
