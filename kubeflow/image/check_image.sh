#!/bin/sh
# Makes the code that was copied readable whatever the checkout's umask was, and imports what containers run: an image
# that cannot is none. Usage, in the folder of the code: check_image.sh COPIED...
set -eu
chmod -R a+rX "$@"
python -c "import tfx.orchestration.kubeflow.v2.container.kubeflow_v2_run_executor"
python -c "from tfx_tpu_trainer import TpuTrainer; import pipelines.taxi.model, pipelines.digits.model"
