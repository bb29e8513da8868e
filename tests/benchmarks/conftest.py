"""The benchmark scripts stand beside one another and import one another by name."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
