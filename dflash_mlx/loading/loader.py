"""Load a target and its drafter from folders, the Hub, or the embedded default pair."""

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import dequantize_model, load_adapters, load_model, load_tokenizer
from safetensors import SafetensorError

from ..convert import convert_cached
from ..convert.inspection import DRAFTER, MLX_DRAFTER, kind_of
from ..drafter.bound import BoundDrafter
from ..drafter.config import DrafterConfig
from ..drafter.model import Drafter
from ..drafter.vocabulary import check_draft_ids
from ..errors import UserError, brief
from ..files import read_json_object
from ..target.stock import PlainTarget
from ..target.target import Target
from .embedded import embedded_drafter, embedded_target, is_embedded_target
from .hub import MODEL_FILES, fetch
from .known_drafter import choose_drafter
from .known_pairs import text_config
from .pair import Pair
from .pairing import check_pair

_log = logging.getLogger(__name__)


def load(
    path_or_hf_repo: str | Path | None = None,
    draft_model: str | Path | Literal[False] | None = None,
    *,
    tokenizer_config: dict[str, Any] | None = None,
    adapter_path: str | Path | None = None,
    revision: str | None = None,
    draft_revision: str | None = None,
    trust_remote_code: bool = False,
) -> tuple[Pair, TokenizerWrapper]:
    """Load a pair, in the manner of ``mlx_lm.load``.

    Args:
        path_or_hf_repo: the target, a folder or a Hub id; None takes the embedded one, and with it
            the embedded drafter if no other is given.
        draft_model: the drafter, a folder or a Hub id. A PyTorch checkpoint is converted once and
            cached. None takes the drafter that is known for the target, if any, and the log says
            which (:func:`~dflash_mlx.loading.known_drafter.choose_drafter`). False takes none: the
            target decodes plainly.
        tokenizer_config: options for the tokenizer.
        adapter_path: LoRA adapters for the target.
        revision: of the target on the Hub.
        draft_revision: of the drafter on the Hub.
        trust_remote_code: whether a target may bring its own code. A drafter never may.

    Returns:
        The pair and the tokenizer.

    Raises:
        UserError: what was asked for cannot be loaded, or the two do not fit together.
    """
    embedded = path_or_hf_repo is None
    if embedded and revision:
        raise UserError("A revision was given without a target; name the target, or leave it out.")
    if draft_revision and not draft_model:
        raise UserError("A draft revision was given without a draft model.")
    # The drafter first: it is the smaller download, and the likelier one to be refused.
    draft_path = _drafter_folder(path_or_hf_repo, draft_model, draft_revision)
    if embedded:
        target_path = embedded_target()
    else:
        files = (*MODEL_FILES, "*.py") if trust_remote_code else MODEL_FILES
        target_path = fetch(path_or_hf_repo, revision, files)

    embedded = embedded or is_embedded_target(target_path)
    model, tokenizer, config = _load_target(
        target_path, tokenizer_config, adapter_path, trust_remote_code
    )
    drafter = load_drafter(draft_path) if draft_path else None
    if embedded and mx.default_device() == mx.cpu:
        # The CPU backend is fast in float32 alone.
        model, drafter = _float32(model), None if drafter is None else _float32(drafter)
    pair = make_pair(model, drafter, *context_length(config))
    if mx.default_device() == mx.cpu and pair.target.dtype != mx.float32:
        warnings.warn(
            f"The target runs in {pair.target.dtype} on the CPU, where MLX is fast in float32 "
            "alone; expect seconds a token.",
            stacklevel=2,
        )
    return pair, tokenizer


def _drafter_folder(
    target: str | Path | None, draft_model: str | Path | Literal[False] | None, revision: str | None
) -> Path | None:
    if draft_model is False:
        return None
    if draft_model is not None:
        return convert_cached(draft_model, revision)
    if target is None:
        return embedded_drafter()
    choice = choose_drafter(target)
    _log.info(choice.message)
    return choice.folder


def make_pair(
    model: nn.Module,
    drafter: Drafter | None = None,
    context_length: int | None = None,
    context_ends: bool = True,
) -> Pair:
    """Pair an mlx-lm model with a drafter, both loaded already; see :class:`~.pair.Pair`.

    A target that drafts cannot be verified on decodes plainly, on mlx-lm's own caches.

    Raises:
        UserError: they do not fit together, or there is a drafter and the target's family is not
            supported. The model is left untapped.
    """
    try:
        untapped = Target(model)
    except UserError as error:
        if drafter is None:
            return Pair(PlainTarget(model, str(error)), None, context_length, context_ends)
        raise UserError(
            f"{error} It decodes plainly without a drafter: pass draft_model=False (--no-draft on "
            "the command line)."
        ) from error
    if drafter is None:
        return Pair(untapped, None, context_length, context_ends)
    check_pair(drafter.config, untapped)
    if drafter.dtype != mx.float32 and untapped.dtype == mx.float32:
        drafter.set_dtype(mx.float32)
    drafter.stack_context()
    # Without taps, the feature is what comes out of the final norm.
    taps = drafter.config.target_layer_ids or (untapped.num_layers,)
    target = Target(model, taps, untapped.family)
    return Pair(target, BoundDrafter(drafter, target), context_length, context_ends)


def load_drafter(path: Path) -> Drafter:
    """Load a converted drafter, quantized or not, from an MLX folder.

    Raises:
        UserError: the folder's config or weights are not those of a converted drafter.
    """
    with _explained(f"The drafter in {path} cannot be loaded", "convert it again"):
        drafter, config = load_model(
            path, lazy=True, get_model_classes=lambda config: (Drafter, DrafterConfig)
        )
        mx.eval(drafter.parameters())
    declared = config.get("quantization")
    if declared and not any("scales" in module for module in drafter.modules()):
        raise UserError(
            f"The drafter in {path} declares the quantization {declared} in its config.json, but "
            "none of its weights is quantized. Convert it again."
        )
    if drafter.config.draft_vocab_size is not None:
        check_draft_ids(drafter.config, drafter.d2t)
    return drafter


def _load_target(
    path: Path,
    tokenizer_config: dict[str, Any] | None,
    adapter_path: str | Path | None,
    trust_remote_code: bool,
) -> tuple[nn.Module, TokenizerWrapper, dict[str, Any]]:
    if not (path / "config.json").is_file():
        raise UserError(f"{path} holds no config.json, so it is not a model folder.")
    config = read_json_object(path / "config.json")
    # The name is enough, though nothing else of the config may be right.
    named = "DFlash" in str(config.get("architectures"))
    if named or kind_of(config) in (DRAFTER, MLX_DRAFTER):
        raise UserError(f"{path} holds a drafter, not a target; give it as the draft model.")
    if adapter_path is not None and not Path(adapter_path).is_dir():
        raise UserError(f"There is no adapter folder {adapter_path}.")
    what = f"The target in {path} cannot be loaded"
    with _explained(what, "download it again, or choose a model that mlx-lm runs"):
        model, config = load_model(path, trust_remote_code=trust_remote_code)
    if adapter_path is not None:
        what = f"The adapters in {adapter_path} cannot be put on the target in {path}"
        with _explained(what, "choose adapters that mlx-lm made for this target"):
            model = load_adapters(model, str(adapter_path))
            model.eval()
    with _explained(f"The tokenizer in {path} cannot be loaded", "download its files again"):
        tokenizer = load_tokenizer(path, tokenizer_config, config.get("eos_token_id"))
    return model, tokenizer, config


@contextmanager
def _explained(what: str, remedy: str) -> Iterator[None]:
    """Turn what mlx-lm, transformers and MLX raise about files into a sentence.

    Raises:
        UserError: they raised something. Its cause is what they raised.
    """
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError as error:
        raise UserError(f"{what}: a file is missing ({brief(error)}); {remedy}.") from error
    except (OSError, RuntimeError, SafetensorError) as error:
        raise UserError(f"{what}: a file is damaged ({brief(error)}); {remedy}.") from error
    except (KeyError, TypeError, ValueError) as error:
        # A config that lacks or contradicts something, a family that mlx-lm does not know, weights
        # that are not those of the config.
        raise UserError(f"{what}: its files do not fit ({brief(error)}); {remedy}.") from error
    except Exception as error:
        raise UserError(
            f"{what}, and nobody expected why: {brief(error)}. A config that makes no sense may be "
            "behind it, or a fault of mlx-lm or dflash-mlx; the traceback (--debug on the command "
            "line) tells."
        ) from error


def _float32(model: nn.Module) -> nn.Module:
    model = dequantize_model(model)
    model.set_dtype(mx.float32)
    mx.eval(model.parameters())
    return model


def context_length(config: Mapping[str, Any]) -> tuple[int | None, bool]:
    """Positions that a target's config declares, and whether it surely ends there.

    A YaRN factor multiplies what the model was first trained for. ``max_position_embeddings`` may
    have been raised to the product or not (Qwen3's is not); the larger one counts. In llama3 and
    longrope configs it always is the scaled length. Of other scalings it is not known.

    Args:
        config: of the target; a multimodal one keeps the language model's in ``text_config``.
    """
    for part in (config, text_config(config)):
        length = part.get("max_position_embeddings")
        if isinstance(length, int):
            scaling = part.get("rope_scaling") or part.get("rope_parameters")
            scaling = scaling if isinstance(scaling, dict) else {}
            kind = scaling.get("rope_type", scaling.get("type", "default"))
            factor = scaling.get("factor")
            if kind == "yarn" and factor:
                trained = scaling.get("original_max_position_embeddings") or length
                return max(length, int(factor * trained)), True
            return length, kind in ("default", "mrope", "llama3", "longrope", "su")
    return None, False
