"""Where a generation ends, as token ids."""

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from infra.errors import ConfigurationError
from tasks.rollout.calls import Tokenizer


@lru_cache(maxsize=4)
def load_tokenizer(model_path: Path) -> Any:
    """The model's own tokenizer, from its folder only; code in the folder is not run."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(model_path), local_files_only=True, trust_remote_code=False)


def stop_token_ids(tokenizer: Tokenizer, model_path: Path, stop: Sequence[str]) -> tuple[int, ...]:
    """The model's end-of-text ids and the first token of each stop text, sorted.

    Raises:
        ConfigurationError: a stop text has no token.
    """
    ids = set(_end_of_text(model_path))
    for text in stop:
        tokens = tokenizer.encode(text, add_special_tokens=False)
        if not tokens:
            raise ConfigurationError(f"rollout.stop: the tokenizer has no token for {text!r}.", ids=[text])
        ids.add(int(tokens[0]))
    return tuple(sorted(ids))


def _end_of_text(model_path: Path) -> list[int]:
    """`eos_token_id` of the generation configuration where the model has one, else of the model's own."""
    for name in ("generation_config.json", "config.json"):
        path = model_path / name
        ids = json.loads(path.read_text()).get("eos_token_id") if path.is_file() else None
        if ids is not None:
            return [ids] if isinstance(ids, int) else list(ids)
    return []
