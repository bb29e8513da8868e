"""The simulated τ, and that it is the τ of real rounds on the target's own text."""

import mlx.core as mx
import numpy as np
import pytest
from support.pairs import tiny_drafter
from support.plain import clear_case
from support.tiny import tiny_model
from support.tokenizer import byte_tokenizer
from support.training import DRAFTERS, encode, tiny_learner

from dflash_mlx.engine.sampling import Sampling
from dflash_mlx.loading.loader import make_pair
from dflash_mlx.measure.arms import our_arms
from dflash_mlx.measure.run import Case, measure
from dflash_mlx.measure.score import Score
from dflash_mlx.target.target import Target
from dflash_mlx.train.blocks import Sequence, sample_blocks
from dflash_mlx.train.feature_cache import FeatureCache
from dflash_mlx.train.heldout import Evaluation, evaluate
from dflash_mlx.train.learner import Learner, Sums
from dflash_mlx.train.losses import Objective
from dflash_mlx.train.optimizer import Updater

N = 60


@pytest.fixture(scope="module")
def texts():
    """Prompts and their greedy text, without near-ties."""
    cases = []
    for i in range(3):
        prompt, text = clear_case(tiny_model("llama"), 7 + i, N, Sampling(), seed=i)
        tokens = np.array(prompt + text, np.int32)
        cases.append((prompt, Sequence(tokens, np.arange(len(tokens)) >= len(prompt))))
    return cases


def overfit(learner, sequences, steps=25):
    """Parameters that are right about much of these texts, though not about all."""
    updater, random = Updater(learner.parameters(), 1e-2), np.random.default_rng(0)
    for _ in range(steps):
        sums = Sums.zero()
        for sequence in sequences:
            blocks = sample_blocks(sequence, 8, 24, random)
            learner.add(updater.parameters, encode(learner, sequence), blocks, sums)
        updater.update({k: g / sums.scalars[1] for k, g in sums.gradients.items()})
    return updater.parameters


@pytest.mark.parametrize("kind", ["full", "sliding by row", "DFlash 2 in two passes"])
def test_simulated_and_real_tau_agree(texts, kind):
    drafter, model = tiny_drafter(seed=3, **DRAFTERS[kind]), tiny_model("llama")
    target = Target(model, drafter.config.target_layer_ids)
    learner = Learner(drafter, target, Objective(gamma=4.0), chunk_blocks=16)
    sequences = [sequence for _, sequence in texts]
    simulated = evaluate(learner, overfit(learner, sequences), FeatureCache(learner), sequences)
    target.release()
    # The learner's drafter holds the trained parameters; its projections are stacked only now.
    with make_pair(model, drafter) as pair:
        _, arm = our_arms(pair, byte_tokenizer(), Sampling(), [pair.drafter.block_size])
        runs = [measure(arm, Case(str(i), "", 0, p), N, 0)[0] for i, (p, _) in enumerate(texts)]
        real = Score.of(runs)
    assert simulated.tau > 1.3
    assert simulated.totals[2] == real.tokens == N * len(texts)
    # Rounding differs between the two forwards, so a round in a hundred may.
    assert simulated.tau == pytest.approx(real.tau, rel=0.02)
    reached = simulated.rounds[::-1].cumsum()[::-1] / simulated.rounds.sum()
    assert reached[1:] == pytest.approx(real.acceptance, abs=0.05)


def test_walk():
    result = Evaluation(np.zeros(13))
    # Anchors 4, 4+2=6, 7, 7+4=11; the last round has one token left.
    result.walk({4: 1, 5: 9, 6: 0, 7: 3, 11: 0}, 5, 13)
    assert result.rounds.tolist() == [2, 1, 0, 1] and result.totals[2] == 8 and result.tau == 2.0
    # What was counted is in the numbers that processes send one another.
    result.totals[:2], result.right[:], result.active[:] = (3.0, 1.5), (4, 3, 0), (4, 4, 2)
    twice = Evaluation(2 * result.counts)
    assert twice.rounds.tolist() == [4, 2, 0, 2]
    for evaluation in (result, twice):
        assert evaluation.mean_loss == 2.0 and evaluation.accuracy == [1.0, 0.75, 0.0]
        assert evaluation.tau == 2.0


def test_a_perfect_drafter_and_a_hopeless_one(texts):
    learner = tiny_learner()
    sequence = texts[0][1]

    def evaluated(shift):
        tokens = mx.array(np.concatenate([sequence.tokens, np.zeros(16, np.int32)]))

        def hidden(blocks, context):
            at = mx.array(blocks.anchors)[:, None] + mx.arange(1, 8)
            return (mx.arange(97) == ((tokens[at] + shift) % 97)[..., None]) * 9.0

        learner.hidden, learner.logits = hidden, lambda x: x
        return evaluate(learner, learner.parameters(), FeatureCache(learner), [sequence])

    perfect, hopeless = evaluated(0), evaluated(1)
    assert perfect.tau == N / -(-N // 8)
    assert hopeless.tau == 1.0 and perfect.accuracy == [1.0] * 7 and hopeless.accuracy == [0.0] * 7
    assert hopeless.mean_loss > perfect.mean_loss
