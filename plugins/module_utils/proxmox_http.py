# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Requests to a Proxmox VE API over HTTPS, by Ansible's own client."""

from __future__ import annotations

import os
import ssl
from http.client import HTTPException
from urllib.error import HTTPError

from ansible.module_utils.urls import Request, make_context
from ansible_collections.gpuops.sglang.plugins.module_utils import proxmox_inventory as proxmox
from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused


class Client:
    """Sends to one API. `ca_path` is a file with the certificates that are trusted, `timeout` in seconds."""

    def __init__(self, asked: proxmox.Api, ca_path: str | None, validate_certs: bool, timeout: int) -> None:
        self._asked = asked
        self._timeout = timeout
        ca_path = os.path.expanduser(ca_path) if ca_path else None
        try:
            self._context = make_context(cafile=ca_path, validate_certs=validate_certs)
        except OSError as error:
            raise Refused(f"ca_path {ca_path}: {error}: copy a node's /etc/pve/pve-root-ca.pem there") from None
        # Python 3.13 also asks for an extension that Proxmox VE's own root certificate does not have
        self._context.verify_flags &= ~ssl.VERIFY_X509_STRICT

    def send(self, method: str, path: str, form: str | None, headers: dict[str, str]) -> tuple[int, str, bytes]:
        """One request: (HTTP code, reason, body); Refused where no answer comes."""
        # a redirection would carry the secret elsewhere, and an entry in ~/.netrc replace it
        request = Request(
            headers=headers, context=self._context, timeout=self._timeout, follow_redirects="none", use_netrc=False
        )
        try:
            with request.open(method, f"{self._asked.url}/api2/json{path}", data=form) as response:
                return 200, "", response.read()
        except HTTPError as error:
            return error.code, str(error.reason), error.read()
        except (OSError, HTTPException) as error:
            raise proxmox.unreachable(self._asked, error, self._timeout) from None
