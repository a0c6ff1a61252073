from infra.megatron.reports import RankStep, combine
from infra.records.plan import Step


def test_a_step_of_which_nothing_is_trained_has_loss_0():
    step = Step(index=0, rollout_ids=(4, 7), rollouts_in_mean=0, ranks=((), ()))
    rank = RankStep(step=0, gradient_norm=0.0, learning_rate=1e-3, seconds=1.0, weights_digest="d")
    result = combine(2, step, [rank, rank])
    assert (result.loss, result.clip_fraction, result.approx_kl, result.entropy, result.tokens) == (0, 0, 0, 0, 0)
    assert result.rollout_terms == {4: 0.0, 7: 0.0}
