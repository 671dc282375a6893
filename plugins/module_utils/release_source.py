# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""SGLang itself from elsewhere than the index: a wheel on the host, or a commit of a repository."""

from __future__ import annotations

import re
from pathlib import Path

from ansible_collections.gpuops.sglang.plugins.module_utils.host import Refused
from ansible_collections.gpuops.sglang.plugins.module_utils.release_record import digest_of
from ansible_collections.gpuops.sglang.plugins.module_utils.tool_venv import LOGIN

COMMIT = re.compile(r"git\+[^@]+(@[^@/]+)?/[^@]*@[0-9a-f]{40}(#subdirectory=[\w./-]+)?")


def asked(source: str) -> dict[str, str]:
    """Return the address that uv is given, and the digest of a wheel: other content makes another release."""
    if not source:
        return {}
    if LOGIN.search(source):
        raise Refused(
            "sglang_install_source has a login in its address, which every user of the host could read in the release: "
            "take it out, and give root a key of ssh or a credential helper of git"
        )
    if source.startswith("git+"):
        if not COMMIT.fullmatch(source):
            raise Refused(f"sglang_install_source is {source}: name the commit with its 40 digits, git+ADDRESS@COMMIT")
        return {"source": source}
    path = Path(source)
    if path.suffix != ".whl" or not path.is_absolute():
        raise Refused(f"sglang_install_source is {source}: give the whole path of a wheel, or git+ADDRESS@COMMIT")
    try:
        return {"source": path.as_uri(), "source_digest": digest_of(source)}
    except OSError as error:
        raise Refused(f"can not read the wheel {source} of sglang_install_source: {error.strerror}") from error
