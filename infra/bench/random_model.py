"""A model with random weights for benches: of the shape of Qwen2.5-0.5B on CUDA, small on a CPU."""

import shutil
from pathlib import Path
from typing import Literal

from infra.sources.embedded.model import folder as embedded_folder

SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 4096}
HALF_BILLION = {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "vocab_size": 151_936}
POSITIONS = 32_768
SAMPLE = 512  # tokens of a sample where all are equal


def write_model(folder: Path, kind: Literal["cpu", "cuda"], *, tokenizer: bool = False) -> tuple[Path, int]:
    """Save it in Hugging Face layout; its folder and vocabulary.

    Args:
        tokenizer: whether to put that of `embedded://tiny` beside it, which knows a few of its tokens.
    """
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    heads = {"num_attention_heads": 14 if kind == "cuda" else 4, "num_key_value_heads": 2}
    shape = HALF_BILLION if kind == "cuda" else SMALL
    dtype = torch.bfloat16 if kind == "cuda" else torch.float32
    config = Qwen2Config(
        **shape,  # type: ignore[arg-type]
        **heads,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
    )
    torch.manual_seed(0)
    with torch.device(kind):
        model = Qwen2ForCausalLM(config)
    model.to(dtype).save_pretrained(folder)  # type: ignore[reportArgumentType]
    if tokenizer:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(embedded_folder("tiny")[0] / name, folder)
    return folder, config.vocab_size
