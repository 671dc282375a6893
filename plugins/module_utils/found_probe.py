# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run in a foreign interpreter as `python -I -B - ASKED`: write SGLang's version, the options of its command line and
the content of a --config file as JSON to standard output.

ASKED is JSON: `schema_probe` (the source text of that module), `path` (where SGLang is looked for first) and `config`.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import stat
import sys
from typing import Any


def config(path: str) -> dict[str, Any]:
    """Return the content of a file as SGLang reads it, or why it can not be read."""
    import yaml

    handle = None
    try:
        # somebody may have put what waits for ever, or does something when it is opened, in its place
        handle = os.open(path, os.O_PATH)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return {"errno": errno.EINVAL}
        with open(f"/proc/self/fd/{handle}", encoding="utf-8") as file:
            return {"content": yaml.safe_load(file)}
    except OSError as error:
        return {"errno": error.errno}
    except (ValueError, yaml.YAMLError):
        return {"errno": None}  # YAML's own words quote the file
    finally:
        if handle is not None:
            os.close(handle)


def main() -> None:
    """Import the parser alone, and print what was asked."""
    asked = json.loads(sys.argv[1])
    if asked["path"]:
        sys.path.insert(0, asked["path"])
    import sglang
    from sglang.srt.server_args import ServerArgs

    names: dict[str, Any] = {"__name__": "schema_probe"}
    exec(asked["schema_probe"], names)
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    answer = {
        "sglang_version": sglang.__version__,
        "options": names["describe"](parser),
        "config": config(asked["config"]) if asked["config"] else None,
    }
    json.dump(answer, sys.stdout, default=str)


if __name__ == "__main__":
    main()
