"""Convert a DFlash checkpoint and write it as a folder in MLX format."""

from pathlib import Path

from ..drafter.config import DrafterConfig
from ..errors import UserError
from .plan import expected_tensors
from .reader import read_raw
from .source import Source, find_source
from .staging import check_free, staged
from .writer import DTYPES, write_drafter

BITS = (2, 3, 4, 5, 6, 8)
GROUP_SIZES = (32, 64, 128)


def convert(
    hf_path: str | Path,
    mlx_path: str | Path,
    *,
    quantize: bool = False,
    q_bits: int = 4,
    q_group_size: int = 64,
    dtype: str | None = None,
    revision: str | None = None,
) -> Path:
    """Convert a z-lab DFlash v1 checkpoint and write an MLX drafter.

    Args:
        hf_path: A Hub id, or a local folder.
        mlx_path: The folder to write; it must not exist, or be empty.
        quantize: Quantize every linear layer (norms stay as they are).
        q_bits: Bits a weight: 2, 3, 4, 5, 6 or 8.
        q_group_size: Weights that share a scale: 32, 64 or 128.
        dtype: "float16", "bfloat16" or "float32"; None keeps the checkpoint's.
        revision: Branch, tag or commit of a Hub repository.

    Returns:
        The folder written: config.json, model.safetensors (in shards when large) and README.md.

    Raises:
        UserError: The checkpoint cannot be found, read or run, or the folder cannot be written.
            Nothing is left behind.
    """
    if dtype is not None and dtype not in DTYPES:
        raise UserError(f"dtype is {dtype!r}; it must be one of {', '.join(DTYPES)}.")
    if quantize and (q_bits not in BITS or q_group_size not in GROUP_SIZES):
        raise UserError(
            f"Quantization to {q_bits} bits in groups of {q_group_size} is not possible; the bits "
            f"must be one of {BITS} and the group size one of {GROUP_SIZES}."
        )
    destination = Path(mlx_path)
    check_free(destination)
    quantization = {"bits": q_bits, "group_size": q_group_size} if quantize else None
    convert_source(find_source(hf_path, revision), destination, quantization, dtype)
    return destination


def convert_source(
    source: Source,
    destination: Path,
    quantization: dict[str, int] | None = None,
    dtype: str | None = None,
    *,
    keep_existing: bool = False,
) -> None:
    """Convert a checkpoint that has been found; see :func:`convert` for the arguments.

    Args:
        source: The checkpoint.
        destination: The folder to write.
        quantization: ``bits`` and ``group_size``, or None.
        dtype: As for :func:`convert`.
        keep_existing: If another process writes the folder meanwhile, keep theirs.

    Raises:
        UserError: As :func:`convert`.
    """
    try:
        raw = read_raw(source)
        if quantization is not None:
            _check_groups(raw.config, quantization["group_size"])
        with staged(destination, keep_existing=keep_existing) as folder:
            write_drafter(source, raw, folder, quantization, dtype)
    except UserError as error:
        raise UserError(f"{source.name}: {error}") from error


def _check_groups(config: DrafterConfig, group_size: int) -> None:
    """MLX would silently leave a layer unquantized whose inputs do not divide into groups."""
    for name, expected in expected_tensors(config).items():
        if len(expected.shape) == 2 and expected.shape[1] % group_size:
            raise UserError(
                f"{name} has {expected.shape[1]} inputs, which do not divide into groups of "
                f"{group_size}; choose a smaller group size or do not quantize."
            )
