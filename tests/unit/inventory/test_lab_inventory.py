# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which hosts have the variables of the lab."""

from __future__ import annotations

from pathlib import Path

from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.vars.manager import VariableManager

INVENTORY = Path(__file__).parents[3] / "inventories/lab"


def test_what_is_installed_in_the_lab_is_no_matter_of_the_controller() -> None:
    loader = DataLoader()
    inventory = InventoryManager(loader, [str(INVENTORY / "1-hosts.yml")])
    variables = VariableManager(loader, inventory)
    ours = {"sglang_install_version", "sglang_install_overrides", "sglang_install_environment"}
    assert ours <= set(variables.get_vars(host=inventory.get_host("ct129")))
    # wheelhouse.yml runs there, and collects what the role would install
    assert not ours & set(variables.get_vars(host=inventory.localhost))
