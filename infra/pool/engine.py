"""The process of one flow run of the pool: `python -m infra.pool.engine`, with the run's id in the environment.

As `prefect.engine`, but for one thing: a flow that ends in a state of its own, as every verdict does, has ended as it
should. Prefect's logs a traceback of its own code under each that is not Completed, which hides what the state says.
"""

import os
from typing import Any
from uuid import UUID

from prefect._internal.control_listener import configure_from_env
from prefect.engine import handle_engine_signals
from prefect.flow_engine import load_flow, load_flow_run, run_flow
from prefect.logging.loggers import flow_run_logger


def main(flow_run_id: UUID) -> None:
    """Run a flow run to its end, in this process's main thread; its flow must not be async."""
    configure_from_env()  # how the worker tells what a SIGTERM is meant for
    with handle_engine_signals(flow_run_id):
        flow_run = load_flow_run(flow_run_id=flow_run_id)
        logger: Any = flow_run_logger(flow_run=flow_run)
        try:
            loaded = load_flow(flow_run)
        except Exception:
            # The worker's own log has it too, but who looks at the run sees the run's.
            logger.exception("The flow of this run can not be loaded from its deployment's entrypoint and folder.")
            raise
        run_flow(loaded, flow_run=flow_run, error_logger=logger, return_type="state")


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning threads take the cores from engine and trainer
    main(UUID(os.environ["PREFECT__FLOW_RUN_ID"]))
