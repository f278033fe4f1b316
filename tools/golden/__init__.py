"""Compare what two commits of Steelyard do: public API, commands, runs, ONNX files, search."""
