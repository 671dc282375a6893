# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A real server serves a model that came from a hub, with the weights in it."""

from __future__ import annotations

import math
import random

import pytest
import tiny_model
from hub_server import HubServer, safetensors
from playbook_runs import CONTROLLER, deploy, eventually, lab_instances, lab_profile
from servers import UNIT, serves
from testinfra.host import Host

STORE = "/srv/gpuops-served"


def echo_model() -> dict[str, bytes]:
    """A model whose layers add nothing, so that it says the last token again: the one whose embedding is most alike."""
    config = tiny_model.config("echo")
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, values = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes = {"model.embed_tokens.weight": [config["vocab_size"], hidden], "model.norm.weight": [hidden]}
    for layer in range(config["num_hidden_layers"]):
        parts = {
            "self_attn.q_proj": [queries, hidden],
            "self_attn.k_proj": [values, hidden],
            "self_attn.v_proj": [values, hidden],
            "self_attn.o_proj": [hidden, queries],
            "self_attn.q_norm": [head],
            "self_attn.k_norm": [head],
            "mlp.gate_proj": [inner, hidden],
            "mlp.up_proj": [inner, hidden],
            "mlp.down_proj": [hidden, inner],
            "input_layernorm": [hidden],
            "post_attention_layernorm": [hidden],
        }
        shapes |= {f"model.layers.{layer}.{part}.weight": shape for part, shape in parts.items()}
    one, minus, zero = b"\x80\x3f", b"\x80\xbf", b"\0\0"
    tensors = {name: (one if "norm" in name else zero) * math.prod(shape) for name, shape in shapes.items()}
    chance = random.Random(1)
    embedding = shapes["model.embed_tokens.weight"]
    tensors["model.embed_tokens.weight"] = b"".join(chance.choice((one, minus)) for _ in range(math.prod(embedding)))
    return {**tiny_model.files("echo"), "model.safetensors": safetensors(tensors, shapes)}


SAY = """
import json, sys, urllib.request
asked = {"model": "echo", "prompt": sys.argv[1], "max_tokens": 5, "temperature": 0}
request = urllib.request.Request(
    "http://127.0.0.1:30000/v1/completions", json.dumps(asked).encode(), {"Content-Type": "application/json"}
)
print(json.load(urllib.request.urlopen(request))["choices"][0]["text"])
"""


@pytest.mark.slow
def test_a_model_from_a_hub_is_served_with_its_weights(ct130: Host) -> None:
    ct130.check_output("rm -rf %s", STORE)  # it stays for what is returned to
    with HubServer(CONTROLLER).running() as hub:
        hub.commit("owner/echo", echo_model())
        (instance,) = lab_instances()
        args = {name: value for name, value in instance["args"].items() if name != "load_format"}
        asked = {
            "sglang_model_models": [{"name": "echo", "repo": "owner/echo"}],
            "sglang_model_store": STORE,
            "sglang_model_endpoint": hub.address,
            "sglang_model_environment": {**lab_profile()["sglang_install_environment"], "no_proxy": CONTROLLER},
            "sglang_server_instances": [{**instance, "model": f"{STORE}/echo", "args": args}],
        }
        run = deploy("-l", "ct130", extra=asked)
        assert run.status == 0, run
        assert ct130.check_output("python3 -c %s ab", SAY) == "bbbbb"
    # the hub is gone
    again = deploy("-l", "ct130", extra=asked)
    assert again.status == 0 and again.count("ct130", "changed") == 0, again
    ct130.check_output("systemctl restart %s", UNIT)
    assert eventually(lambda: serves(ct130), 240) and ct130.check_output("python3 -c %s xy", SAY) == "yyyyy"
