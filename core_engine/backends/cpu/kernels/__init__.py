"""Numba kernels of the CPU backend; importing any module but `arguments` needs numba."""
