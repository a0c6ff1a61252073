"""A seeded random Qwen2 of 0.1 M parameters, small enough that every engine test takes its own weights from it."""

from pathlib import Path

VOCABULARY = 128
END_OF_TEXT = 127


def write_tiny_qwen2(folder: Path, *, seed: int = 0) -> Path:
    """Save a Qwen2 with random weights in float32 (no tokenizer). Equal seeds give equal files."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        eos_token_id=END_OF_TEXT,
        bos_token_id=None,
        initializer_range=0.2,
        dtype="float32",
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder
