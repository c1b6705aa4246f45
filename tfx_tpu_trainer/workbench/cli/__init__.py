"""The command `tfx-tpu-trainer`: its commands by subject; none imports TensorFlow before it is called."""
