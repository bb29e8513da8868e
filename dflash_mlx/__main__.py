"""``python -m dflash_mlx`` is the ``dflash-mlx`` command."""

import sys

from .cli.main import main

sys.exit(main())
