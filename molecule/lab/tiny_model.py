# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make the folder of a tiny language model that real SGLang serves on a CPU.

Usage: python3 tiny_model.py DEST_DIR [--name tiny-a]

The shape is a Qwen3 of two layers and the tokenizer knows the 256 bytes and the special tokens only. There are no
weights: the server is started with --load-format dummy and makes random ones, so it answers nonsense, at full length.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from paths import put

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# Every row of the embedding is a token, so that whatever a random model answers can be written as text.
VOCABULARY = len(SPECIAL) + 256
CONTEXT = 4096
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokens() -> list[str]:
    """The 256 characters by which a byte-level tokenizer writes bytes, in the order of the bytes.

    Printable bytes stand for themselves, the others are moved above 255 (the alphabet that GPT-2 introduced).
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = 0
    tokens = []
    for byte in range(256):
        if byte in printable:
            tokens.append(chr(byte))
        else:
            tokens.append(chr(256 + moved))
            moved += 1
    return tokens


def config(name: str) -> dict[str, Any]:
    """config.json. _name_or_path tells two models of equal shape apart."""
    return {
        "_name_or_path": name,
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": SPECIAL.index("<|endoftext|>"),
        "eos_token_id": SPECIAL.index("<|im_end|>"),
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 128,
        "initializer_range": 0.02,
        "intermediate_size": 256,
        "max_position_embeddings": CONTEXT,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "num_key_value_heads": 1,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": VOCABULARY,
    }


def tokenizer() -> dict[str, Any]:
    """tokenizer.json: byte-level BPE without a merge, so every byte of the text is one token."""
    special = [
        {"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        | {"special": True}
        for i, t in enumerate(SPECIAL)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate([*SPECIAL, *byte_tokens()])},
            "merges": [],
        },
    }


def files(name: str) -> dict[str, bytes]:
    """Every file of the model, by name."""
    ends = [SPECIAL.index("<|im_end|>"), SPECIAL.index("<|endoftext|>")]
    documents = {
        "config.json": config(name),
        "generation_config.json": {"bos_token_id": ends[1], "eos_token_id": ends, "do_sample": False},
        "tokenizer.json": tokenizer(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": None,
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "clean_up_tokenization_spaces": False,
            "model_max_length": CONTEXT,
        },
    }
    result = {key: (json.dumps(value, indent=1) + "\n").encode() for key, value in documents.items()}
    result["chat_template.jinja"] = CHAT_TEMPLATE.encode()
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dest", type=Path, help="folder of the model; made if it is missing")
    parser.add_argument("--name", help="name written into config.json; the folder's own name if left out")
    arguments = parser.parse_args()
    dest: Path = arguments.dest
    model: str = arguments.name or dest.resolve().name
    written = [name for name, data in files(model).items() if put(dest / name, data)]
    if written:
        print(f"made the model {model}: {', '.join(written)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
