"""The operators as Triton kernels. Only modules of this folder import triton."""
