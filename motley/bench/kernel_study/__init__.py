"""The kernel study: array and server kernels in NumPy, Numba, DaCe, torch and Triton, measured side by side."""
