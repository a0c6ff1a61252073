"""Lets torchvision, and with it transformers' and SGLang's models, be imported beside a CPU build of torch.

torchvision's wheel on PyPI is built for CUDA: beside a CPU torch its compiled part does not load, and
`import torchvision` then fails because two of its operators were never declared. Declaring them is enough; nothing here
calls them. PyTorch calls `declare` at the end of every `import torch` (entry point `torch.backends` in pyproject.toml).
"""

from importlib import metadata

_libraries: list[object] = []


def declare() -> None:
    import torch

    if torch.version.cuda is not None or not _has_cuda_torchvision():
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _libraries.append(library)  # a library that is collected takes its declarations with it


def _has_cuda_torchvision() -> bool:
    """PyPI's wheel carries no local version; builds for a CPU torch are marked `+cpu` and declare for themselves."""
    try:
        return "+" not in metadata.version("torchvision")
    except metadata.PackageNotFoundError:
        return False
