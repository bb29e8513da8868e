"""The command line; imported as ``dflash_mlx.cli``, one file a command."""
