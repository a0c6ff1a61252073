"""The drill's scenes: small scenarios, each with what some faults need in order to show."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from infra.scenario.load import load
from infra.scenario.model import Scenario

BASE = "tiny"
# The ranks are started once: what the optimizer and the layout are made from is the same in every scene. A rate four
# times that of `tiny` moves the weights far enough for a tensor that was left out to show.
COMMON = ("rollout.iterations=1", "training.learning_rate=2e-4", "checks.determinism=false", "checks.invariance=false")


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A scenario of the drill.

    Args:
        what: what it has that the others lack.
        overrides: on top of the scenario `tiny` and COMMON.
        engine: generation and weight sync with SGLang; the others generate with the same model in this process.
    """

    name: str
    what: str
    overrides: tuple[str, ...] = ()
    engine: bool = False

    def scenario(self) -> Scenario:
        return load(BASE, [*COMMON, *self.overrides])


SCENES = {
    scene.name: scene
    for scene in (
        Scene(
            name="base",
            what="four rollouts a prompt, siblings that differ, unequal lengths, two steps, rollouts split over ranks",
        ),
        Scene(
            name="masked",
            what="response tokens that are not trained",
            overrides=("rollout.generate=infra.drill.hooks.with_tool_output", "training.max_tokens_per_gpu=32"),
        ),
        Scene(
            name="aborted",
            what="an aborted rollout, and a group of one",
            overrides=(
                "rollout.generate=infra.drill.hooks.with_aborted",
                "rollout.hook_options={aborted: [1, 2, 3]}",
                "rollout.attempts=1",
                "training.global_batch_size=6",
            ),
        ),
        Scene(
            name="trailing",
            what="a number of rollouts that the step does not divide",
            overrides=("training.global_batch_size=6",),
        ),
        Scene(
            name="padded",
            what="more micro-batches than the samples fill",
            overrides=(
                "training.max_tokens_per_gpu=null",
                "training.micro_batch_size=1",
                "training.global_batch_size=5",
            ),
        ),
        Scene(
            name="later",
            what="later steps whose gradient is published, ratios beyond the clip range, a KL term",
            overrides=(
                "rollout.iterations=2",
                "training.publish_gradients=all",
                "training.kl_coefficient=0.1",
                "training.clip_low=0.05",
                "training.clip_high=0.05",
            ),
        ),
        Scene(name="synced", what="SGLang, with weights pushed into it", engine=True),
    )
}


def scenes_with(overrides: Sequence[str]) -> dict[str, Scene]:
    """All scenes with `a.b=value` on top of each, for another device or type.

    Raises:
        ConfigurationError: a field or value that no scenario has.
    """
    scenes = {name: replace(s, overrides=(*s.overrides, *overrides)) for name, s in SCENES.items()}
    for scene in scenes.values():
        scene.scenario()
    return scenes
