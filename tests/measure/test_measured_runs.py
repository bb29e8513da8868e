"""What a measured run says of its rounds and its text, and in which order runs come."""

import itertools

import pytest
from support.pairs import oracle_pair
from support.plain import plain_greedy, random_prompt
from support.reports import drafting_run, made_run
from support.tiny import VOCAB, tiny_model
from support.tokenizer import byte_tokenizer

from dflash_mlx.engine.sampling import Sampling
from dflash_mlx.errors import UserError
from dflash_mlx.measure.alternation import Plan, alternating, judge, measure_all, warm_up
from dflash_mlx.measure.arms import Arm, mlx_lm_arms, our_arms, usable_block_sizes
from dflash_mlx.measure.run import Case, first_difference, measure, tokens_per_round
from dflash_mlx.measure.score import Score, by_kind

TOKENIZER = byte_tokenizer()
PROMPT = random_prompt(9, VOCAB)


def arms_of(pair, *block_sizes, draft_model=None):
    ours = our_arms(pair, TOKENIZER, Sampling(), block_sizes)
    return [*ours, *mlx_lm_arms(pair.model, TOKENIZER, Sampling(), draft_model)]


def test_rounds_of_every_arm():
    model = tiny_model()
    truth = PROMPT + plain_greedy(model, PROMPT, 40)
    with oracle_pair(model, truth, counts=(2, 0, 3)) as pair:
        arms = {arm.name: arm for arm in arms_of(pair, 4, draft_model=tiny_model())}
        found = {name: measure(arm, Case("p", "x", 0, PROMPT), 18, 0) for name, arm in arms.items()}
    assert {tuple(tokens) for _, tokens in found.values()} == {tuple(truth[9:27])}
    runs = {name: run for name, (run, _) in found.items()}
    assert runs["block 4"].tokens_per_round == [3, 1, 4, 3, 1, 4, 2]
    assert runs["block 4"].block_rounds == {"4": 7}
    assert runs["block 4"].acceptance == [5 / 7, 5 / 7, 2 / 7]
    assert runs["plain"].tokens_per_round == [1] * 18 and runs["plain"].tau == 1
    assert runs["mlx-lm"].acceptance == [] and runs["mlx-lm"].tau == 1
    # The draft model is the target itself, so that all drafts are accepted.
    assert runs["mlx-lm draft model"].tokens_per_round == [3] * 6
    assert runs["mlx-lm draft model"].acceptance == [1, 1]
    for run in runs.values():
        assert run.tokens == 18 and run.finish_reason == "length" and run.prompt_tokens == 9
        assert 0 < run.first_token_seconds < run.seconds and run.decode_tps > 0
        assert run.prompt_tps == 9 / run.first_token_seconds


def test_text_that_ends_in_its_first_round_has_no_speed():
    model = tiny_model()
    truth = PROMPT + plain_greedy(model, PROMPT, 9)
    with oracle_pair(model, truth, counts=(3,)) as pair:
        *_, arm = our_arms(pair, TOKENIZER, Sampling(), [4])
        run, _ = measure(arm, Case("p", "x", 0, PROMPT), 4, 0)
    assert run.decode_tps is None and run.tokens == 4


@pytest.mark.parametrize(
    ("flags", "expected"),
    [("FFF", [1, 1, 1]), ("TTFFTF", [3, 1, 2]), ("TFTT", [2, 2]), ("F", [1]), ("T", [1])],
)
def test_tokens_per_round(flags, expected):
    assert tokens_per_round([flag == "T" for flag in flags]) == expected


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1], [1, 2], 1), ([], [], None)],
)
def test_first_difference(a, b, expected):
    assert first_difference(a, b) == first_difference(b, a) == expected


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_each_arm_takes_each_place_equally_often(count):
    arms = list(range(count))
    visits = [list(alternating(arms, visit)) for visit in range(2 * count)]
    for place in range(count):
        assert sorted(visit[place] for visit in visits) == sorted(arms * 2)
    if count > 2:
        before = {pair for visit in visits for pair in itertools.pairwise(visit)}
        assert all((a, b) in before and (b, a) in before for a, b in before)


def test_loop_judges_texts_and_counts_runs():
    model = tiny_model()
    cases = [Case(name, "x", 0, random_prompt(9, VOCAB, i)) for i, name in enumerate("ab")]
    truth = cases[0].tokens + plain_greedy(model, cases[0].tokens, 30)
    seen, runs = [], []
    with oracle_pair(model, truth) as pair:
        arms, notes = warm_up(arms_of(pair, 2, 4), cases, seen.append)
        assert [arm.name for arm in arms] == ["plain", "block 2", "block 4", "mlx-lm"]
        plan = Plan(arms, cases, repeats=2, max_tokens=12)
        answers = {}
        failure = measure_all(plan, runs, answers, seen.append, lambda: seen.append("done"))
    assert notes == [] and failure is None and len(runs) == plan.runs == 16 == seen.count("done")
    assert all(run.same_text and run.differs_at is None for run in runs)
    assert list(answers) == ["a", "b"] and answers["a"] == truth[9:21]
    assert {(r.arm, r.prompt, r.repeat) for r in runs} == set(
        itertools.product([arm.name for arm in arms], "ab", range(2))
    )


def test_judgement_of_another_text():
    ran = {("block 3", "code-1"): [1, 2, 4], ("plain", "code-1"): [1, 2, 3]}
    ran |= {("free", "code-1"): [5], ("block 3", "code-2"): [1]}
    runs = [made_run(*key, same_text=None) for key in ran]
    arms = [Arm("plain", None, True), Arm("block 3", None, True), Arm("free", None, False)]
    judge(runs, list(ran.values()), arms)
    verdicts = [(run.same_text, run.differs_at) for run in runs]
    assert verdicts == [(False, 2), (True, None), (None, None), (None, None)]


def test_scores_count_all_rounds_of_a_kind():
    runs = [
        drafting_run("block 3", "a-1", 20.0, block_rounds={"3": 7}, acceptance=[3 / 7, 1 / 7]),
        drafting_run("block 3", "a-2", 5.0, block_rounds={"3": 1, "2": 2}, acceptance=[1, 0]),
        drafting_run("block 3", "b-1", 5.0, block_rounds={"1": 11}, acceptance=[]),
    ]
    scores = by_kind(runs)
    assert list(scores) == ["a", "b"]
    assert (scores["a"].prompts, scores["a"].tokens, scores["a"].rounds) == (2, 22, 10)
    assert scores["a"].tau == 2.2 and scores["a"].acceptance == [6 / 10, 1 / 8]
    assert scores["b"].acceptance == [] and Score.of(runs).rounds == 21
    assert Score.of(runs).tokens_per_second == pytest.approx(10.0)


def test_arm_that_mlx_lm_refuses_is_left_out_with_its_reason():
    def refuse(tokens, n):
        raise ValueError("no such cache")

    def mistake(tokens, n):
        raise UserError("a mistake")

    arms = [Arm("theirs", refuse, True)]
    assert warm_up(arms, [Case("p", "x", 0, [1])], print) == (
        [],
        ["Left out theirs: mlx-lm says 'no such cache'."],
    )
    with pytest.raises(UserError, match="a mistake"):
        warm_up([Arm("ours", mistake, True)], [Case("p", "x", 0, [1])], print)


def test_block_sizes_beyond_training_are_left_out():
    kept, notes = usable_block_sizes([1, 8, 16, "auto"], 8)
    assert kept == [1, 8, "auto"] and "16" in notes[0] and "8" in notes[0]
    assert usable_block_sizes([2, 4], 8) == ([2, 4], [])
    with pytest.raises(UserError, match="up to 8"):
        usable_block_sizes([9, 16], 8)


def test_sampled_arms_of_ours_share_their_text_and_mlx_lm_is_not_asked():
    model = tiny_model()
    sampling = Sampling(temp=1.0, seed=3)
    truth = PROMPT + plain_greedy(model, PROMPT, 30)
    with oracle_pair(model, truth) as pair:
        plain, block = our_arms(pair, TOKENIZER, sampling, [4])
        (theirs,) = mlx_lm_arms(pair.model, TOKENIZER, sampling)
        case = Case("p", "x", 0, PROMPT)
        assert measure(plain, case, 15, 0)[1] == measure(block, case, 15, 0)[1]
        first = measure(theirs, case, 15, 0)[1]
        assert measure(theirs, case, 15, 0)[1] == first
    assert plain.same_text and block.same_text and not theirs.same_text
    assert not our_arms(pair, TOKENIZER, Sampling(1.0, seed=3, acceptance="rejection"), [4])[
        1
    ].same_text
