"""What a conversion of any format writes is exactly what the drafter's model holds."""

from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import pytest
from formats import CONFIGS, as_source, drafter_of, random_tensors
from mlx.utils import tree_flatten
from support.pairs import respond, tokens_of
from support.plain import plain_greedy, random_prompt
from support.tiny import tiny_model
from support.tokenizer import byte_tokenizer
from tiny_checkpoint import write_checkpoint, write_torch_file

from dflash_mlx.convert import convert
from dflash_mlx.loading.loader import load_drafter, make_pair


def parameters(model: nn.Module) -> dict[str, mx.array]:
    return dict(tree_flatten(model.parameters()))


@pytest.mark.parametrize("own_tables", [False, True])
@pytest.mark.parametrize("format_name", CONFIGS)
def test_every_tensor_arrives(tmp_path: Path, format_name: str, own_tables: bool) -> None:
    config = drafter_of(format_name, own_tables=own_tables)
    tensors = random_tensors(config)
    stored = as_source(tensors, config, format_name)
    source = write_checkpoint(tmp_path / "source", CONFIGS[format_name](), stored)
    drafter = load_drafter(convert(source, tmp_path / "out"))
    assert drafter.config == config
    found = parameters(drafter)
    assert set(found) == set(tensors)
    for name, array in tensors.items():
        assert found[name].dtype == array.dtype, name
        assert mx.array_equal(found[name], array), name


@pytest.mark.parametrize("format_name", CONFIGS)
def test_quantized(tmp_path: Path, format_name: str) -> None:
    """Strict as well, and quantized where it should be."""
    config = drafter_of(format_name)
    tensors = random_tensors(config)
    stored = as_source(tensors, config, format_name)
    source = write_checkpoint(tmp_path / "source", CONFIGS[format_name](), stored)
    drafter = load_drafter(convert(source, tmp_path / "out", quantize=True, q_group_size=32))
    quantized = {
        name: module
        for name, module in drafter.named_modules()
        if isinstance(module, (nn.QuantizedLinear, nn.QuantizedEmbedding))
    }
    for name, array in tensors.items():
        module = name.removesuffix(".weight")
        kept = array.ndim != 2 or "_conv." in name or name.startswith("candidate_selector.")
        assert (module in quantized) is not kept, name
        if kept:
            assert mx.array_equal(parameters(drafter)[name], array), name


def test_mask_embedding_of_its_own(tmp_path: Path) -> None:
    config = CONFIGS["z-lab"]()
    config["dflash_config"]["mask_token_id"] = 64
    tensors = random_tensors(drafter_of("z-lab"))
    source = write_checkpoint(tmp_path / "source", config, tensors)
    write_torch_file(source / "mask_embedding.pt", mx.arange(64).astype(mx.float32), 64)
    drafter = load_drafter(convert(source, tmp_path / "out"))
    assert mx.array_equal(drafter.mask_embedding, mx.arange(64).astype(mx.bfloat16))


@pytest.mark.parametrize("format_name", CONFIGS)
def test_every_format_drafts(tmp_path: Path, format_name: str) -> None:
    """Converted, paired with a tiny target: the text is the target's."""
    # One that is narrower than its target cannot borrow the target's tables.
    config = drafter_of(format_name, own_tables=format_name == "JetSpec")
    tensors = random_tensors(config)
    stored = as_source(tensors, config, format_name)
    source = write_checkpoint(tmp_path / "source", CONFIGS[format_name](), stored)
    drafter = load_drafter(convert(source, tmp_path / "out", dtype="float32"))
    model = tiny_model(
        hidden_size=config.target_hidden_size, num_hidden_layers=12, vocab_size=64, head_dim=16
    )
    prompt = random_prompt(9, 64)
    with make_pair(model, drafter) as pair:
        responses = respond(pair, byte_tokenizer(), prompt, 16)
    assert tokens_of(responses) == plain_greedy(model, prompt, 16)


BITS = [{"quantize": True, "q_bits": bits} for bits in (2, 3, 4, 5, 6, 8)]
DTYPES = [{"dtype": dtype} for dtype in ("float16", "bfloat16", "float32")]


@pytest.mark.parametrize("options", [*BITS, *DTYPES, *(d | BITS[2] for d in DTYPES)], ids=str)
def test_every_quantization_and_dtype_drafts(tmp_path: Path, options: dict[str, object]) -> None:
    config = drafter_of("z-lab")
    source = write_checkpoint(tmp_path / "source", CONFIGS["z-lab"](), random_tensors(config))
    drafter = load_drafter(convert(source, tmp_path / "out", **options, q_group_size=32))
    model = tiny_model(hidden_size=64, num_hidden_layers=12, vocab_size=64, head_dim=16)
    model.set_dtype(drafter.dtype)
    prompt, drafts = random_prompt(9, 64), []
    with make_pair(model, drafter) as pair:
        draft = pair.drafter.draft
        pair.drafter.draft = lambda *args: drafts.append(draft(*args)) or drafts[-1]
        assert len(tokens_of(respond(pair, byte_tokenizer(), prompt, 6))) == 6
    assert all(mx.isfinite(proposal.logits).all() for proposal in drafts)
