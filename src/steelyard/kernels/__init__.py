"""Fused kernels (Triton) for computations that are slow on a GPU when each step is a kernel of its own."""
