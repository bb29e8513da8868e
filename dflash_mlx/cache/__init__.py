"""Buffers with device-side offsets, and their exchange with mlx-lm's prompt caches."""
