"""Which layers slide, over what, and which blocks are causal, by each format's rules."""

from typing import Any

import pytest
from formats import muse_config, zlab_v2_config
from tiny_checkpoint import parsed_config, tiny_config

from dflash_mlx.errors import UserError

FULL, SLIDING = "full_attention", "sliding_attention"


def zlab(**changes: Any) -> dict[str, Any]:
    """Two layers, the first of which slides."""
    base = {"layer_types": [SLIDING, FULL], "sliding_window": 32}
    return tiny_config(**base | changes)


def test_legacy_rule() -> None:
    """Without a flag, sliding layers are causal and full ones are not."""
    config = parsed_config(zlab())
    assert (config.sliding, config.causal) == ((True, False), (True, False))
    assert parsed_config(zlab_v2_config()).causal == (True, True, False)
    assert parsed_config(tiny_config()).causal == (False, False)


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("key", ["is_causal", "causal", "causal_head", "dflash_query_causal"])
@pytest.mark.parametrize("nested", [True, False])
def test_a_flag_holds_for_every_layer(key: str, value: bool, nested: bool) -> None:
    changes = {"dflash_config": {key: value}} if nested else {key: value}
    assert parsed_config(zlab(**changes)).causal == (value, value)
    assert parsed_config(tiny_config(**changes)).causal == (value, value)


@pytest.mark.parametrize(
    "changes",
    [
        {"is_causal": True, "dflash_config": {"is_causal": False}},
        {"is_causal": False, "dflash_config": {"causal": True}},
        {"causal": False, "dflash_config": {"causal_head": True}},
    ],
)
def test_flags_that_contradict(changes: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"causal is (True|False) .* but .*(True|False)"):
        parsed_config(zlab(**changes))


def test_a_flag_must_be_one() -> None:
    with pytest.raises(UserError, match="causality flag is 'no'"):
        parsed_config(zlab(is_causal="no"))


def test_use_swa_overrules_layer_types() -> None:
    """ModelOpt leaves them full, and another exporter has none."""
    swa = {"use_swa": True, "swa_window_size": 16, "causal": False}
    for layer_types in ([FULL, FULL], None):
        config = parsed_config(tiny_config(layer_types=layer_types, dflash_config=swa))
        assert (config.sliding, config.causal) == ((True, True), (False, False))
        assert (config.sliding_window, config.window_rule) == (16, "row")
    del swa["swa_window_size"]
    config = parsed_config(tiny_config(sliding_window=24, dflash_config=swa))
    assert config.sliding_window == 24


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"dflash_config": {"use_swa": True, "swa_window_size": 16}}, "use_swa but none of"),
        ({"dflash_config": {"use_swa": True, "causal": False}}, "no swa_window_size"),
        ({"dflash_config": {"use_swa": 1, "causal": False}}, "use_swa is 1"),
        (
            {"dflash_config": {"use_swa": True, "causal": False, "swa_window_size": 7}},
            "a window of 7, smaller than the block size 8",
        ),
        (
            {
                "sliding_window": 64,
                "dflash_config": {"use_swa": True, "causal": False, "swa_window_size": 16},
            },
            "swa_window_size is 16 .* sliding_window is 64",
        ),
        ({"dflash_config": {"swa_window_size": 16}}, "swa_window_size but not use_swa"),
        ({"layer_types": [SLIDING, FULL]}, "no sliding_window"),
        ({"layer_types": [SLIDING, FULL], "sliding_window": 0}, "sliding_window is 0"),
        ({"layer_types": [SLIDING, FULL], "sliding_window": [32, 0]}, "sliding_window is"),
        ({"layer_types": [SLIDING, FULL], "sliding_window": True}, "sliding_window is True"),
        ({"layer_types": [SLIDING]}, r"layer_types is \['sliding_attention'\]"),
        ({"layer_types": SLIDING}, "layer_types is"),
        ({"layer_types": [FULL, "chunked_attention"]}, "chunked_attention"),
        (
            {"layer_types": [SLIDING, FULL], "sliding_window": 32, "use_sliding_window": False},
            r"layer_types is \['sliding_attention', .* but use_sliding_window is False",
        ),
        ({"layer_types": None, "sliding_window": 32}, "32 without layer_types"),
        ({"layer_types": None, "use_sliding_window": True}, "without layer_types"),
    ],
)
def test_mistakes(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        parsed_config(tiny_config(**changes))


def test_switches_that_say_nothing() -> None:
    """Beside layer_types, use_sliding_window and a window of full layers are ignored."""
    assert parsed_config(zlab(use_sliding_window=True)) == parsed_config(zlab())
    full = parsed_config(tiny_config(sliding_window=32, use_sliding_window=True))
    assert (full.layer_types, full.sliding_window) == ((), None)
    absent = tiny_config(layer_types=None, sliding_window=32, use_sliding_window=False)
    assert parsed_config(absent) == parsed_config(tiny_config())


def test_muse_counts_one_row_more() -> None:
    """abs(p - k) <= 6 is p - k < 7, in both directions."""
    config = parsed_config(muse_config())
    assert (config.sliding_window, config.window_rule) == (7, "row")
    assert not any(config.causal)
