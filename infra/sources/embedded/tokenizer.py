"""A tokenizer of single bytes for the embedded model: any text survives it, and a newline ends a text."""

from pathlib import Path

from tokenizers import pre_tokenizers
from transformers.models.qwen2.tokenization_qwen2 import Qwen2Tokenizer

END, END_ID = "\n", 0
PAD, PAD_ID = "<pad>", 1
VOCABULARY = (
    320  # splits evenly over tensor-parallel ranks; every id has a token, so whatever is sampled can be decoded
)
BYTE_LEVEL_NEWLINE = "Ċ"


def vocabulary() -> list[str]:
    """The tokens by id, `[VOCABULARY]`: end, padding, the other 255 bytes in byte-level BPE spelling, reserved."""
    others = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - {BYTE_LEVEL_NEWLINE})
    known = [END, PAD, *others]
    return [*known, *(f"<reserved-{i}>" for i in range(len(known), VOCABULARY))]


def build() -> Qwen2Tokenizer:
    """Byte-level BPE without a single merge, in the class that transformers uses for a Qwen2 whatever the files say."""
    return Qwen2Tokenizer(
        vocab={token: i for i, token in enumerate(vocabulary())},
        merges=[],
        unk_token=PAD,
        eos_token=END,
        pad_token=PAD,
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )


def save(folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json."""
    build().save_pretrained(folder)
