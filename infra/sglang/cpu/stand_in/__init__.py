"""A folder for `sys.path`: its `sgl_kernel` is found by SGLang's server on the CPU, where no kernel wheel exists."""
