"""A run as one ONNX file whose outputs are calibrated probabilities."""
