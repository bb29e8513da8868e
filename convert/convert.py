"""Convert a DFlash checkpoint and write it as a folder in MLX format."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..drafter.config import DrafterConfig
from ..errors import UserError
from ..files import check_free, staged
from .additions import Additions
from .plan import expected_tensors, is_quantizable
from .reader import is_mlx_format, read_raw
from .recast import check_recast, recast
from .source import Source, find_source
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
    block_size: int | None = None,
    mask_token_id: int | None = None,
    attention_factor: float | None = None,
    allow_final_tap: bool = False,
) -> Path:
    """Convert a DFlash checkpoint of any published format and write an MLX drafter.

    A drafter that is in MLX format already can be quantized or cast.

    Args:
        hf_path: A Hub id, or a local folder.
        mlx_path: The folder to write; it must not exist, or be empty.
        quantize: Quantize the linear layers and tables; norms and DFlash 2's kernels and selector
            stay as they are.
        q_bits: Bits a weight: 2, 3, 4, 5, 6 or 8.
        q_group_size: Weights that share a scale: 32, 64 or 128.
        dtype: "float16", "bfloat16" or "float32"; None keeps the checkpoint's.
        revision: Branch, tag or commit of a Hub repository.
        block_size: The config's ``block_size``, if it has none.
        mask_token_id: The config's ``mask_token_id``, if it has none.
        attention_factor: YaRN's amplitude, in place of the one that the config leads to.
        allow_final_tap: Take a tap on the target's last layer as its output before the final norm.

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
    additions = Additions(
        block_size=block_size,
        mask_token_id=mask_token_id,
        attention_factor=attention_factor,
        allow_final_tap=allow_final_tap,
    )
    source = find_source(hf_path, revision)
    with _naming(source):
        already_mlx = is_mlx_format(source)
    if already_mlx:
        _recast(source, destination, quantization, dtype, additions)
    else:
        convert_source(source, destination, quantization, dtype, additions)
    return destination


def convert_source(
    source: Source,
    destination: Path,
    quantization: dict[str, int] | None = None,
    dtype: str | None = None,
    additions: Additions | None = None,
    *,
    keep_existing: bool = False,
) -> None:
    """Convert a checkpoint that has been found; see :func:`convert` for the arguments.

    Args:
        source: The checkpoint.
        destination: The folder to write.
        quantization: ``bits`` and ``group_size``, or None.
        dtype: As for :func:`convert`.
        additions: What the user adds to the config.
        keep_existing: If another process writes the folder meanwhile, keep theirs.

    Raises:
        UserError: As :func:`convert`.
    """
    with _naming(source):
        raw = read_raw(source, additions or Additions())
        if quantization is not None:
            _check_groups(raw.config, quantization["group_size"])
        with staged(destination, keep_existing=keep_existing) as folder:
            write_drafter(source, raw, folder, quantization, dtype)


def _recast(
    source: Source,
    destination: Path,
    quantization: dict[str, int] | None,
    dtype: str | None,
    additions: Additions,
) -> None:
    with _naming(source):
        config = check_recast(source, additions, quantization, dtype)
        if quantization is not None:
            _check_groups(config, quantization["group_size"])
        with staged(destination) as folder:
            recast(source, config, folder, quantization, dtype)


@contextmanager
def _naming(source: Source) -> Iterator[None]:
    """Put the checkpoint's name before what is wrong with it."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{source.name}: {error}") from error


def _check_groups(config: DrafterConfig, group_size: int) -> None:
    """MLX would silently leave a layer unquantized whose inputs do not divide into groups."""
    for name, expected in expected_tensors(config).items():
        inputs = expected.shape[-1]
        if len(expected.shape) == 2 and is_quantizable(name) and inputs % group_size:
            raise UserError(
                f"{name} has {inputs} inputs, which do not divide into groups of "
                f"{group_size}; choose a smaller group size or do not quantize."
            )
