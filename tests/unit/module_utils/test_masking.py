# Copyright (c) 2026, gpuops contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json
import shlex
import urllib.parse
from collections.abc import Callable

import pytest
from ansible_collections.gpuops.sglang.plugins.module_utils.masking import MASK, Masker, is_secret_name
from hypothesis import given
from hypothesis import strategies as st

WRITERS: list[Callable[[str], str]] = [
    lambda text: json.dumps(text)[1:-1],
    lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    lambda text: repr(text)[1:-1],
    lambda text: ascii(text)[1:-1],
    lambda text: repr(text.encode())[2:-1],
    urllib.parse.quote,
    lambda text: urllib.parse.quote(text, safe=""),
    urllib.parse.quote_plus,
    lambda text: urllib.parse.quote(text, safe="").lower() if text.islower() else text,
]
# no half characters, which nothing can write, and no letters from which a mask is made
SECRETS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="*<>"), min_size=4, max_size=40)


@given(SECRETS.filter(lambda secret: secret == secret.strip()), st.lists(st.sampled_from(WRITERS), max_size=2))
def test_a_secret_is_found_however_it_was_written(secret: str, writers: list[Callable[[str], str]]) -> None:
    text = secret
    for write in writers:
        text = write(text)
    assert Masker([("api_key", secret)])(f"x<{text}>y") == f"x<{MASK}>y"


@pytest.mark.parametrize(
    ("secret", "text", "masked"),
    [
        ("one line\r\nanother line", "said\none line\n\nanother line\n", f"said\n{MASK}\n\n{MASK}\n"),
        ('{"password": "value-of-it", "port": 1}', "login with value-of-it", f"login with {MASK}"),
        ("trailing space ", "with trailing space", f"with {MASK}"),
        ("it's", shlex.quote("it's") + r" 'it'\''s'", f"'{MASK}' '{MASK}'"),
    ],
)
def test_parts_of_a_secret_are_secret(secret: str, text: str, masked: str) -> None:
    assert Masker([("OTHER", secret)])(text) == masked


def test_a_secret_within_another_leaves_no_rest() -> None:
    masker = Masker([("A", "abcd"), ("B", "xx-abcd-yy"), ("C", "abcd-y")])
    assert masker("xx-abcd-yy abcd-y abcd") == f"{MASK} {MASK} {MASK}"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("the word ab stays; my_pin=ab", f"the word ab stays; my_pin={MASK}"),
        ('{"MY-PIN": "ab"}', f'{{"MY-PIN": "{MASK}"}}'),
        ("--my-pin ab --port 1", f"--my-pin {MASK} --port 1"),
        ("https_my_pin: None", "https_my_pin: None"),
    ],
)
def test_a_short_secret_is_masked_after_its_name(text: str, masked: str) -> None:
    assert Masker([("my_pin", "ab")])(text) == masked


def test_a_known_name_is_a_whole_word() -> None:
    assert Masker([("A", "x1")])("CUDA: 12, A: x1") == f"CUDA: 12, A: {MASK}"


def test_a_known_secret_may_be_a_number() -> None:
    assert Masker([("token", "77")])("token: 77") == f"token: {MASK}"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("ServerArgs(api_key='v w', tp_size=2)", f"ServerArgs(api_key='{MASK}', tp_size=2)"),
        ("api_key=SecretStr('v'), b", f"api_key=SecretStr('{MASK}'), b"),
        (
            '{"x": "{\\"api_key\\": \\"v\\\\\\"w\\", \\"n\\": 1}"}',
            f'{{"x": "{{\\"api_key\\": \\"{MASK}\\", \\"n\\": 1}}"}}',
        ),
        ('password: "never ended\nnext', f'password: "{MASK}\nnext'),
        ("X-API-Key: v\nHost: h", f"X-API-Key: {MASK}\nHost: h"),
        ("GET /v1?api_key=v&n=1 HTTP/1.1", f"GET /v1?api_key={MASK}&n=1 HTTP/1.1"),
        ('Environment="HF_TOKEN=v w" "N=1"', f'Environment="HF_TOKEN={MASK}" "N=1"'),
        ("Environment=AWS_SECRET_ACCESS_KEY=v N=1", f"Environment=AWS_SECRET_ACCESS_KEY={MASK} N=1"),
        ("python --ssl-keyfile-password v --port 1", f"python --ssl-keyfile-password {MASK} --port 1"),
        ('["--api-key", "v", "--port", "1"]', f'["--api-key", "{MASK}", "--port", "1"]'),
        ("watermark_key_b=v", f"watermark_key_b={MASK}"),
        ("Authorization: Basic dXNlcjpwYXNz", f"Authorization: {MASK}"),
        ("curl -H 'Authorization: Bearer v' http://h", f"curl -H 'Authorization: {MASK}' http://h"),
        ("sent bearer abc.def-ghi", f"sent bearer {MASK}"),
        ("http://user:v@h:3128/ and http://h:80/", f"http://user:{MASK}@h:3128/ and http://h:80/"),
        ("from s3://key:v@host/m", f"from s3://key:{MASK}@host/m"),
        ("uses hf_" + "a1B2" * 9, f"uses hf_{MASK}"),
        ("uses sk-abcdefgh.", f"uses sk-{MASK}."),
        (
            "-----BEGIN RSA PRIVATE KEY-----\nAAAA\nBBBB\n-----END RSA PRIVATE KEY-----\nmore",
            f"-----BEGIN RSA PRIVATE KEY-----{MASK}-----END RSA PRIVATE KEY-----\nmore",
        ),
    ],
)
def test_what_looks_like_a_secret_is_masked(text: str, masked: str) -> None:
    assert Masker()(text) == masked
    assert Masker()(masked) == masked


@pytest.mark.parametrize(
    "text",
    [
        "Prefill batch, #new-seq: 1, #new-token: 7, #cached-token: 0, token usage: 0.00, #running-req: 0",
        "ServerArgs(tokenizer_path='/srv/m', api_key=None, ssl_keyfile='/etc/ssl/key.pem', max_total_tokens=4096)",
        '{"bos_token": "<s>", "eos_token_id": 151645, "num_key_value_heads": 8, "api_key": null, "password": ""}',
        "python --tokenizer-path /srv/m --skip-token --port 1",
        'File "/opt/x/sglang/srt/utils/hf_transformers_utils.py", line 3, in task-disk-cache-lookup',
        "http://127.0.0.1:30000/v1/models of user@example.com",
    ],
)
def test_facts_stay(text: str) -> None:
    assert Masker()(text) == text
    assert Masker([("api_key", "sk-1234567890"), ("HF_TOKEN", "x")])(text) == text


@pytest.mark.parametrize(
    "name", ["api_key", "apikey", "--admin-api-key", "HF_TOKEN", "password", "key", "CLIENT_SECRET"]
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["--tokenizer-path", "max_total_tokens", "ssl_keyfile", "--port", "monkey", ""])
def test_names_of_no_secrets(name: str) -> None:
    assert not is_secret_name(name)
