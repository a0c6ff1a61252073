"""A trainer rank that starts over with another scenario, so that one set of processes serves many of them."""

from infra.megatron.rank import TrainerRank
from infra.run import Run


class VariantRank(TrainerRank):
    def start_over(self, run: Run) -> None:
        """The downloaded weights, a new optimizer and another scenario of the same layout."""
        from megatron.core import parallel_state

        from infra.megatron.core import TrainerCore

        device = self.core.device
        parallel_state.destroy_model_parallel()
        self.run = run
        self.core = TrainerCore.build(run.scenario, self.layout, device, self.model_ref.path)
