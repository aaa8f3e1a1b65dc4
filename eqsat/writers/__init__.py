"""Programs for other compilers: the rewritten graph, without kernels, as StableHLO or ONNX."""
