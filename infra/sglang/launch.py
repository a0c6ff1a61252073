"""SGLang's HTTP server as a program: `python -m infra.sglang.launch --device cpu …`, the arguments are SGLang's own.

On CUDA this is SGLang's launcher and nothing else; on the CPU what is missing there is put in place first.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from infra.sglang.address import KEY_VARIABLE, HiddenKey


def import_for(device: str) -> None:
    """Import SGLang in this process, with what it lacks on a CPU."""
    if device != "cpu":
        import sglang.launch_server

        return
    from infra.sglang.cpu import patches

    patches.before_import()
    import sglang.launch_server  # noqa: F401

    patches.after_import()


def main(arguments: Sequence[str]) -> None:
    model, device = (arguments[arguments.index(flag) + 1] for flag in ("--model-path", "--device"))
    if not Path(model, "config.json").is_file():
        sys.exit(f"{model} is no model folder: it has no config.json")
    import_for(device)
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args

    key = os.environ.pop(KEY_VARIABLE, None)
    run_server(prepare_server_args([*arguments, *(["--api-key", HiddenKey(key)] if key else [])]))


if __name__ == "__main__":
    main(sys.argv[1:])
