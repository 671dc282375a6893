# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of the modules that take the instances of a host."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  instances:
    description: The instances of this host.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Name of the instance; its service is C(sglang-NAME.service).
        type: str
        required: true
      model:
        description: Directory of the model on this host, or a hub id.
        type: str
        required: true
      host:
        description: Address that the server listens on.
        type: str
        default: 127.0.0.1
      port:
        description: TCP port of the server.
        type: int
        required: true
      gpus:
        description: Indices of the GPUs that the server may see; all when left out.
        type: list
        elements: int
        default: []
      args:
        description: SGLang's own options, named as on its command line with underscores.
        type: dict
        default: {}
      env:
        description: Environment variables of the server.
        type: dict
        default: {}
      secrets:
        description:
          - What nobody may read. A name in small letters is an option of SGLang, for example C(api_key); one in
            capitals is an environment variable, for example C(HF_TOKEN).
        type: dict
        default: {}
  accept_changes:
    description:
      - What SGLang may do otherwise than asked. The name of an option that it changes, or of an environment variable
        that it does not read, and the reason why that is accepted, which is kept in the record of the launch.
      - Without an entry here a launch of such an instance is refused.
    type: dict
    default: {}
  plan:
    description:
      - What to do when the plan of GPU memory says that an instance does not fit, or that fewer requests run at a time
        than C(max_running_requests) asks for. V(refuse) stops nothing and starts nothing, V(warn) tells and starts,
        V(skip) does not plan.
      - The plan counts as free what the launch before holds, and as held what others hold. What lacks less than a plan
        is exact (1 % of a card) is tried with a warning.
    type: str
    choices: [refuse, warn, skip]
    default: refuse
  take_over:
    description:
      - Let an instance take the place of an SGLang server that somebody has started by hand and that listens on the
        instance's port. What that server holds counts as free.
      - Without it such a server is named and nothing is touched.
    type: bool
    default: false
  release:
    description: Directory of the release to run, as M(gpuops.sglang.sglang_release) returns it.
    type: path
    required: true
  user:
    description: Unprivileged user that the servers run as; made if it does not exist.
    type: str
    default: sglang
  state_dir:
    description: Directory for what the instances write.
    type: path
    default: /var/lib/sglang
"""

    # where some states need names alone; annotated, because ansible-test takes every plain assignment for a literal
    OPTIONAL: str = DOCUMENTATION.replace("    required: true\n    suboptions:", "    default: []\n    suboptions:")
