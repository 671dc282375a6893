#!/usr/bin/python
# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_plan
short_description: Tell whether a model with its arguments fits into GPUs
description:
  - Works out what each GPU would hold under a release of SGLang (weights, draft model, states, KV cache, graphs), how
    many tokens and requests that leaves room for, and where it would fail.
  - Names the smallest single changes that make it fit, or that reach a wanted context and concurrency. Each of them is
    planned again before it is offered.
  - Reads the model's configuration and the headers of its weights; starts nothing and loads nothing. It needs neither
    SGLang nor root, and no GPU where O(gpus) names the cards.
  - A model, an option or a quantization that is not understood gives no figures but RV(fits=null) and the reason.
author: gpuops contributors (@gpuops)
options:
  model:
    description: Directory of the model on this host, or its C(config.json).
    type: path
    required: true
  args:
    description:
      - SGLang's own options, named as on its command line with underscores. Those that decide about memory are looked
        at; M(gpuops.sglang.sglang_preflight) says whether SGLang takes them all.
    type: dict
    default: {}
  sglang_version:
    description: Release of SGLang, for example V(0.5.11); the newest that is known when left out.
    type: str
  gpus:
    description: The cards to plan for; those of this host, with the memory that is free now, when left out.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the card, for example V(H200), V(A6000) or V(NVIDIA A100-SXM4-80GB).
        type: str
        required: true
      memory_total_mib:
        description: Its memory in MiB as nvidia-smi tells it. Required for a card that is not known.
        type: float
      memory_free_mib:
        description: What of it is free; all but what the driver takes when left out.
        type: float
      count:
        description: How many of them there are.
        type: int
        default: 1
  gpu_indices:
    description:
      - Indices of the GPUs of this host to plan for, in the order of the ranks; all when left out. Without a meaning
        where O(gpus) is set.
    type: list
    elements: int
    default: []
  instance:
    description:
      - Name of the instance of this host that the plan is for. What its running launch holds of the GPUs counts as
        free, since it gives way to the next, and what was measured when it was started last is used, as far as the
        login may read that. Without a meaning where O(gpus) is set.
    type: str
  state_dir:
    description: Directory of what the instances write.
    type: path
    default: /var/lib/sglang
  assume_complete:
    description:
      - Plan from C(config.json) where weights are not on disk or not complete. Without it such a directory is an error.
    type: bool
    default: false
  context:
    description: Tokens that a request is to have. Changes are looked for until that is reached.
    type: int
  concurrency:
    description: Requests that are to run at a time, each with O(context) if that is set.
    type: int
attributes:
  check_mode:
    description: Does the same.
    support: full
  diff_mode:
    description: There is nothing to show.
    support: none
seealso:
  - module: gpuops.sglang.sglang_preflight
"""

EXAMPLES = r"""
- name: See whether the model fits into the GPUs of this host
  gpuops.sglang.sglang_plan:
    model: /srv/models/Qwen3.6-27B
    args: {tp_size: 2, context_length: 32768, max_running_requests: 8}
    sglang_version: 0.5.23
  register: planned

- name: Ask what two cards that are yet to be bought would need for 16 requests of 32768 tokens
  gpuops.sglang.sglang_plan:
    model: /srv/models/Qwen3.6-27B/config.json
    assume_complete: true
    gpus: [{name: RTX PRO 6000 Blackwell, count: 2}]
    context: 32768
    concurrency: 16
  delegate_to: localhost
"""

RETURN = r"""
sglang_version:
  description: The release that was planned for.
  type: str
  returned: success
fits:
  description: Whether the server would start; V(null) if that can not be told.
  type: bool
  returned: success
verdict:
  description: The answer in one line.
  type: str
  returned: success
  sample: fits, but 48 requests requested, 4 effective
kv_tokens:
  description:
    - Tokens of the KV cache of each scheduler. This, RV(state_slots), RV(effective_max_running_requests) and
      RV(longest_context) are V(null) if RV(fits) is.
  type: int
  returned: success
state_slots:
  description: Slots for the states of linear layers; 0 for a model without them.
  type: int
  returned: success
effective_max_running_requests:
  description: Requests that run at a time, of all schedulers.
  type: int
  returned: success
requested:
  description: Requests that were asked for, or that SGLang sets by itself; V(null) if it derives them from memory.
  type: int
  returned: success
weights_gib:
  description: Weights on the GPU that holds most of them; a lower bound if RV(fits) is V(null).
  type: float
  returned: success
draft_gib:
  description: Weights of the draft model on a GPU.
  type: float
  returned: success
failing_stage:
  description:
    - Where it fails, V(weights), V(draft), V(state), V(verify) (copies of states that drafts are verified with),
      V(cache), V(requests) (tables of requests) or V(graphs); empty if it does not.
  type: str
  returned: success
missing_gib:
  description: What is missing there on each GPU.
  type: float
  returned: success
context:
  description: Tokens that a request may have by the arguments and the model.
  type: int
  returned: success
longest_context:
  description: Tokens that each of all requests can have at the same time.
  type: int
  returned: success
levers:
  description:
    - Single changes that make it fit, or reach what is wanted, the one that costs least first. Empty if there is
      nothing to change, or nothing that could be proved.
  type: list
  elements: dict
  returned: success
  contains:
    option:
      description: The option, as it is written or as the release calls it.
      type: str
    value:
      description: What to set it to; V(null) to delete it.
      type: raw
    costs:
      description: What the change costs.
      type: str
    kv_tokens:
      description: Tokens of the KV cache with it.
      type: int
    effective_max_running_requests:
      description: Requests that run at a time with it.
      type: int
proposal:
  description:
    - Arguments with which O(context) and O(concurrency) are reached, on the fewest of the cards; those in O(args) stay.
      V(null) if nothing is wanted or nothing reaches it.
  type: dict
  returned: success
  contains:
    args:
      description: The arguments.
      type: dict
    verdict:
      description: The answer for them in one line.
      type: str
    kv_tokens:
      description: Tokens of the KV cache with them.
      type: int
    effective_max_running_requests:
      description: Requests that run at a time with them.
      type: int
gpus:
  description: What each GPU that is used would hold.
  type: list
  elements: dict
  returned: success
  contains:
    name:
      description: Name of the card.
      type: str
    total_gib:
      description: Memory of the card.
      type: float
    parts:
      description:
        - GiB of each part, which together are the memory of the card. V(others) is what the driver and other processes
          hold, V(rest) what is left for activations.
      type: dict
notes:
  description: What else is to be known, each on one line.
  type: list
  elements: str
  returned: success
unknown:
  description: What is not understood, so that figures would be guesses.
  type: list
  elements: str
  returned: success
bars:
  description: All of this as text for a terminal.
  type: str
  returned: success
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuops.sglang.plugins.module_utils.fit import on_host
from ansible_collections.gpuops.sglang.plugins.module_utils.gpu_room import Room
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from ansible_collections.gpuops.sglang.plugins.module_utils.planning import Question, answer
from ansible_collections.gpuops.sglang.plugins.module_utils.supervisor.here import choose

CARD = {
    "name": {"type": "str", "required": True},
    "memory_total_mib": {"type": "float"},
    "memory_free_mib": {"type": "float"},
    "count": {"type": "int", "default": 1},
}


def main() -> None:
    """Plan and report."""
    module = AnsibleModule(
        argument_spec={
            "model": {"type": "path", "required": True},
            "args": {"type": "dict", "default": {}},
            "sglang_version": {"type": "str"},
            "gpus": {"type": "list", "elements": "dict", "default": [], "options": CARD},
            "gpu_indices": {"type": "list", "elements": "int", "default": []},
            "instance": {"type": "str"},
            "state_dir": {"type": "path", "default": "/var/lib/sglang"},
            "assume_complete": {"type": "bool", "default": False},
            "context": {"type": "int"},
            "concurrency": {"type": "int"},
        },
        supports_check_mode=True,
    )
    asked = module.params
    question = Question(
        model=Path(asked["model"]),
        args=asked["args"],
        version=asked["sglang_version"] or "",
        gpus=asked["gpus"],
        indices=asked["gpu_indices"],
        assume_complete=asked["assume_complete"],
        context=asked["context"] or 0,
        concurrency=asked["concurrency"] or 0,
    )
    state = Path(asked["state_dir"])
    choose(state)
    try:
        room = Room(state) if asked["instance"] and not asked["gpus"] else None
        if room and room.cards:
            room.release(asked["instance"])
            question = on_host(question, asked["instance"], room, state)
        module.exit_json(changed=False, **answer(question))
    except (ValueError, Refused) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
