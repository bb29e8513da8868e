"""The table of known pairs against the published configs: what it says of a drafter is so."""

import pytest
from published import NAMES, REFUSED, RUNS, completed

from dflash_mlx.convert.detect import recognize
from dflash_mlx.loading.known_pairs import KnownPair, known_pairs


def configs_of(pair: KnownPair) -> list[str]:
    return [name for name in NAMES if name.split("@")[0].replace("__", "/", 1) == pair.drafter]


CHECKED = [(pair, name) for pair in known_pairs() for name in configs_of(pair)]


def test_most_of_the_table_is_checked() -> None:
    assert len({pair.drafter for pair, _ in CHECKED}) >= 30


@pytest.mark.parametrize(
    ("pair", "name"), CHECKED, ids=lambda value: getattr(value, "drafter", value)
)
def test_pair(pair: KnownPair, name: str) -> None:
    if name in REFUSED:
        assert pair.unsupported is not None
        return
    config = recognize(completed(name)).parsed.config
    expected = RUNS[name]
    assert pair.unsupported is None or "--block-size" in pair.unsupported
    assert pair.block_size in (expected.block_size, None)
    assert (pair.hidden_size, pair.vocab_size) == (config.target_hidden_size, config.vocab_size)
    assert config.num_target_layers in (pair.num_layers, None)
