"""What is masked, what is not, and that neither depends on how deep or in which text form it stands."""

from __future__ import annotations

import json
from html import escape
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3lib.reporting.privacy import is_secret_name, mask, mask_text

SECRET = "s3cr3tValue99"
HARMLESS = [
    "--max-total-tokens 4096", "num_draft_tokens=4", "prompt_tokens: 5", "--tokenizer-path /models/tok",
    "Depth 1 is the first draft token. <em>Accuracy</em>: right",
    "tokens_per_second=3.4", "--speculative-token-map /m/map.pt", '{"bos_token": "<|im_start|>"}',
    "pad_token=<p>", "eos_token_id: 2", "hot_token_id", "the next token: the", "key = value", "cache_key=abc",
    "--kv-cache-dtype fp8", "k_proj.weight", "api_key=None", "hf_model_path", "sk-learn", "a basic thing",
    "ssh://git@github.com/x.git", "https://host/home/page", "/data/root/x", "/rooted", "[24/40, 1.2it/s]",
    "PWD=/data/x", "OLDPWD=/x", "CACHE_KEY=3", "KEY=3", "forward_pass: 3", "docker run -u 1000:1000 x", "curl -u bob x",
    "serve \\\n --api-key \\\n --tp 2", "spec_accept_token_num=3", "token_ids [1, 2]",
]  # fmt: skip
NAMES = [
    "--api-key", "--admin-api-key", "--hf-token", "HF_TOKEN", "WANDB_API_KEY", "api_key", "apiKey",
    "password", "AWS_SECRET_ACCESS_KEY",
    "client_secret", "x-api-key", "PASS", "MY_PWD", "ANTHROPIC_KEY", "openai_key",
    "--ssl-keyfile-password", "huggingfaceToken",
]  # fmt: skip
FORMS = [
    "{name}={secret}", "{name}='{secret}'", 'run "{name}": "{secret}", x', "['{name}', '{secret}', 1]",
    "<td>{name}</td><td>{secret}</td>", "<th><code>{name}</code></th>\n<td>{secret}</td>",
    '{name}: str = "{secret}"  # help', '"{{\\"{name}\\": \\"{secret}\\"}}"', "env {name}={secret} python x",
]  # fmt: skip


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_text_stays(text: str) -> None:
    assert mask_text(text) == text


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_a_named_secret_is_masked_in_every_form_of_text(name: str, form: str) -> None:
    text = form.format(name=name, secret=SECRET)
    for written in (text, f"some_token {text} and more", text if text.startswith("<") else escape(text)):
        masked = mask_text(written)
        assert SECRET not in masked and name in masked and masked == mask_text(masked)


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("serve --api-key abc --tp 2", "serve --api-key *** --tp 2"),
        ("serve --api-key --tp 2", "serve --api-key --tp 2"),
        ("serve --api-key k1 'k2' \\\n k3 --tp 2", "serve --api-key *** *** \\\n *** --tp 2"),
        ("Set --api-key KEY for the server.", "Set --api-key *** for the server."),
        ("--api-key 'abc def", "--api-key '***"),
        ('["--api-key \\"abc def", "--tp 2"]', '["--api-key \\"***", "--tp 2"]'),
        ("curl -X POST \\\n -su 'bob:pw' u", "curl -X POST \\\n -su '***' u"),
        ("Authorization: Bearer abc.def", "Authorization: ***"),
        ("curl -H 'authorization: Basic dTpw' u", "curl -H 'authorization: ***' u"),
        ("sent bearer abcdef1234567", "sent bearer ***"),
        ("https://bob:pw@host:80/x", "https://***@host:80/x"),
        ("found hf_abcDEF1234567890abc here", "found *** here"),
        ("/lab?token=0123abcd4567ef&x=1", "/lab?token=***&x=1"),
        ("-----BEGIN PRIVATE KEY-----\nab\n-----END PRIVATE KEY-----", "***"),
        ("open /home/bob/x, /Users/ann/y, /root/z", "open ~/x, ~/y, ~/z"),
        ("file:///home/bob/x.txt C:\\Users\\bob\\y", "file://~/x.txt ~\\y"),
    ],
)  # fmt: skip
def test_texts(text: str, masked: str) -> None:
    assert mask_text(text) == masked


def test_structures() -> None:
    given_value = {
        "launch": ["--api-key", SECRET, "k2", "--tp", 2],
        "env": [{"name": "HF_TOKEN", "value": SECRET}, ("password", 1234)],
        "hf_token": None,
        "nested": {"auth": {"api_key": {"inner": SECRET}}, "token": "the", "pad_token": "<pad>"},
        "/home/bob/x": 1.5,
    }
    assert mask(given_value) == {
        "launch": ["--api-key", "***", "***", "--tp", 2],
        "env": [{"name": "HF_TOKEN", "value": "***"}, ("password", "***")],
        "hf_token": None,
        "nested": {"auth": {"api_key": "***"}, "token": "the", "pad_token": "<pad>"},
        "~/x": 1.5,
    }


def escaped(text: str, times: int) -> str:
    """As it stands in JSON within JSON."""
    return escaped(json.dumps(text)[1:-1], times - 1) if times else text


FLAGS = st.sampled_from([name for name in NAMES if name.startswith("--")] + ["--api_key", "--wandb-token"])
SEPARATORS = st.sampled_from(
    [" ", "  ", "\t", "=", " = ", "\n", " \\\n", " \\\n  ", "=\\\n", " \\\r\n ", " \\\n \\\n ", "\\\n"]
)
SECRETS = st.from_regex(r"[A-Za-z0-9][\w+/.~-]{2,20}[A-Za-z0-9]", fullmatch=True).map(lambda tail: f"S3cret{tail}")
BREAKS = st.sampled_from([" ", "\n", " \\\n", " \\\n  "])
ORDINARY = st.sampled_from(["--tp", "--max-total-tokens", "--tokenizer-path", "--speculative-token-map", "--port"])


@given(FLAGS, SEPARATORS, SECRETS, st.sampled_from(["", '"', "'"]), BREAKS, ORDINARY, SEPARATORS, st.integers(0, 3))
def test_a_secret_flag_is_masked_whatever_stands_before_its_value(
    flag: str, separator: str, secret: str, quote: str, line: str, ordinary: str, other: str, times: int
) -> None:
    """As written in a shell, a script read into a string, JSON of it and JSON of that; other flags keep theirs."""
    text = f"serve{line}{ordinary}{other}plain7{line}{flag}{separator}{quote}{secret}{quote}{line}{ordinary}{other}x8y"
    assert mask_text(escaped(text, times)) == escaped(text, times).replace(escaped(secret, times), "***")
    unclosed = escaped(f"serve{line}{flag}{separator}'{secret} more", times)
    assert escaped(secret, times) not in mask_text(unclosed)
    assert secret not in mask({"launch": text})["launch"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_masking_twice_is_masking_once(value: Any) -> None:
    assert mask(mask(value)) == mask(value)


@given(st.sampled_from(NAMES), JSON, st.integers(0, 3))
def test_a_secret_is_gone_at_any_depth(name: str, other: Any, depth: int) -> None:
    value: Any = {name: SECRET, "other": other, "text": f"{name}={SECRET}"}
    for _ in range(depth):
        value = {"x": [other, value]}
    assert SECRET not in json.dumps(mask(value))


@given(st.sampled_from(["prompt", "draft", "total", "new", "pad", "mask", "bos", "unk", "special", "accept", "hot"]))
def test_words_for_tokens_of_text_are_no_secrets(word: str) -> None:
    assert not any(is_secret_name(name) for name in (f"{word}_token", f"{word}_tokens", f"max_{word}_token_id"))
