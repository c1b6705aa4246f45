"""A model server in Java, with TensorFlow's own binding for it: built and run by test_model_server.py."""
