"""Convert a DFlash checkpoint and write it as a folder in MLX format."""

import atexit
import hashlib
import json
import re
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..drafter.config import FORMAT_VERSION, DrafterConfig
from ..errors import UserError
from ..files import Unwritable, cache_dir, check_free, remove_stale, staged
from .declared import mlx_quantization
from .keys import Additions
from .reader import RawDrafter, read_converted, read_raw
from .source import MASK_FILE, Source, find_source
from .tensors import is_quantizable, model_parameters
from .weights import DTYPES
from .writer import write_drafter

BITS = (2, 3, 4, 5, 6, 8)
GROUP_SIZES = (32, 64, 128)
# Counts changes of the converter's output, so that older cached conversions are not reused.
_CONVERTER_VERSION = 2
_QUANTIZED = (
    "This drafter is quantized already; take the one that it was made from, which has more of the "
    "weights."
)


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
        if source.is_converted:
            _check_recast(source, additions, quantization, dtype)
            raw = read_converted(source)
        else:
            if quantization is not None and mlx_quantization(source.config):
                raise UserError(_QUANTIZED)
            raw = read_raw(source, additions)
            _check_groups(raw.config, quantization)
        with staged(destination) as folder:
            write_drafter(folder, source, raw, quantization, dtype)
    return destination


def convert_cached(
    path_or_repo: str | Path, revision: str | None = None, *, local_only: bool = False
) -> Path:
    """A folder with the drafter in MLX format, converted once if it is not yet in that format.

    Conversions are kept in the user's cache, by the commit of a Hub repository or by the path,
    sizes and times of a local checkpoint's files. Two processes may convert the same drafter at
    the same time; the first to finish wins.

    Where the cache cannot be written, the folder is a temporary one, and there is a warning.

    Args:
        path_or_repo: A Hub id or a local folder, in MLX format or a checkpoint.
        revision: Branch, tag or commit of a Hub repository.
        local_only: Take a Hub repository from the Hub's cache, and download nothing.

    Raises:
        UserError: As :func:`convert`.
    """
    source = find_source(path_or_repo, revision, local_only=local_only)
    if source.is_converted:
        source.fetch_weights()
        return source.folder
    name = re.sub(r"[^\w.-]+", "--", source.name)
    destination = cache_dir() / "drafters" / f"{name}-{_cache_key(source)}"
    if not destination.is_dir():
        remove_stale(destination.parent)
        with _naming(source):
            raw = read_raw(source, Additions())
        try:
            _write_once(destination, source, raw)
        except Unwritable as error:
            # Until the process ends: loading reads the weights once.
            scratch = Path(tempfile.mkdtemp(prefix="dflash-mlx-"))
            atexit.register(shutil.rmtree, scratch, ignore_errors=True)
            destination = scratch / destination.name
            _write_once(destination, source, raw)
            warnings.warn(
                f"The converted drafter is not kept, so it will be converted again next time: "
                f"{error}",
                stacklevel=2,
            )
    return destination


def _write_once(destination: Path, source: Source, raw: RawDrafter) -> None:
    with _naming(source), staged(destination, keep_existing=True) as folder:
        write_drafter(folder, source, raw)


def _check_recast(
    source: Source, additions: Additions, quantization: dict[str, int] | None, dtype: str | None
) -> None:
    """Check what is asked of a drafter in MLX format, before its weights are fetched."""
    if quantization is None and dtype is None:
        raise UserError(
            "This drafter is already in MLX format; use it as it is, or quantize it (-q) or cast "
            "it (--dtype)."
        )
    if additions.given:
        raise UserError(
            f"This drafter is in MLX format, whose config leaves nothing out; drop what adds to it "
            f"({', '.join(additions.given)})."
        )
    if "quantization" in source.config:
        raise UserError(_QUANTIZED)
    _check_groups(DrafterConfig.from_dict(source.config), quantization)


def _check_groups(config: DrafterConfig, quantization: dict[str, int] | None) -> None:
    """MLX would silently leave a layer unquantized whose inputs do not divide into groups."""
    if quantization is None:
        return
    group_size = quantization["group_size"]
    for name, array in model_parameters(config).items():
        if is_quantizable(name, array.shape) and array.shape[-1] % group_size:
            raise UserError(
                f"{name} has {array.shape[-1]} inputs, which do not divide into groups of "
                f"{group_size}; choose a smaller group size or do not quantize."
            )


@contextmanager
def _naming(source: Source) -> Iterator[None]:
    """Put the checkpoint's name before what is wrong with it."""
    try:
        yield
    except UserError as error:
        raise type(error)(f"{source.name}: {error}") from error


def _cache_key(source: Source) -> str:
    identity: list[Any] = [FORMAT_VERSION, _CONVERTER_VERSION]
    if source.repo is not None:
        identity += [source.repo, source.revision]
    else:
        identity.append(str(source.folder.resolve()))
        folders = {source.folder, source.weights_folder}
        for pattern in ("*.json", "*.safetensors", MASK_FILE):
            for path in sorted(path for folder in folders for path in folder.glob(pattern)):
                stat = path.stat()
                identity.append([path.name, stat.st_size, stat.st_mtime_ns])
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
