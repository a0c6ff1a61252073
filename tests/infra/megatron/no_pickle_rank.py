"""A trainer rank in whose process nothing can be unpickled while it loads a state."""

import contextlib
import pickle
from collections.abc import Iterator
from typing import Any
from unittest import mock

from infra.megatron.rank import TrainerRank
from infra.store import ObjectRef


def refused(*_: Any, **__: Any) -> Any:
    raise AssertionError("a trainer state is not unpickled")


@contextlib.contextmanager
def nothing_unpickled() -> Iterator[None]:
    """Only for as long as a state is loaded: Ray's own messages are pickles."""
    import torch

    readers = [(pickle, "load"), (pickle, "loads"), (pickle, "Unpickler")]
    with contextlib.ExitStack() as patches:
        for module, name in (*readers, (torch, "load"), (torch.serialization, "load")):
            patches.enter_context(mock.patch.object(module, name, refused))
        yield


class NoPickleRank(TrainerRank):
    def load_state(self, shard: ObjectRef, rollouts_seen: int) -> str:
        import infra.megatron.state  # noqa: F401  not while nothing can be unpickled

        with nothing_unpickled():
            return super().load_state(shard, rollouts_seen)
