"""Faults that a person would bring along."""

from infra.drill.fault import replaces


@replaces("tasks.training.plan.sample_weights")
def twice_the_loss(original):
    """The loss is twice as large."""

    def faulty(*args, **kwargs):
        weights, rollouts = original(*args, **kwargs)
        return 2 * weights, rollouts

    return faulty


@replaces("tasks.training.plan.sample_weights", must=("steps",))
def blamed_on_the_wrong_check(original):
    """The same, and the wrong check is expected to see it."""
    return twice_the_loss(original)


@replaces("tasks.training.weights.sample_weights")
def twice_where_defined(original):
    """The same, by the module that defines the function: the plan has a name of its own for it."""
    return twice_the_loss(original)


@replaces("tasks.rollout.draw.evaluation_slots")
def never_called(original):
    """Nothing calls what is replaced."""
    return original


@replaces("tasks.training.plan.sample_weights")
def nothing_wrong(original):
    """Nothing is wrong: no check may be red."""
    return original


def not_marked(original):
    return original
