"""The command `tfx-tpu-trainer`: one module a command, and none imports TensorFlow before it is called."""
