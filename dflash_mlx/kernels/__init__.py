"""Metal kernels, one a file, each with what it equals in plain MLX."""
