# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stands in for an SGLang that nobody knows of and that holds a port: whatever it is asked, it answers 200.

Usage: python3 squatter.py PORT (on 127.0.0.1; it ends by itself after 10 minutes)
"""

from __future__ import annotations

import json
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

META = {"id": "0", "weight_version": "default", "prompt_tokens": 5, "completion_tokens": 8}
ANSWER = {
    "model_path": "/srv/models/other",
    "is_generation": True,
    "weight_version": "default",
    "text": "oooo",
    "meta_info": META,
    "internal_states": [],
}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        content = json.dumps(ANSWER).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET


signal.alarm(600)
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
