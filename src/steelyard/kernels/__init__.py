"""Fused versions of what is slow on a GPU when each step of it is a kernel of its own (Triton)."""
