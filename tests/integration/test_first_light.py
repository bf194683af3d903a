"""The shortest way through the whole gateway: a key, an alias, an engine, and back."""

from __future__ import annotations

import openai
import pytest


def test_a_chat_goes_there_and_back(site):
    engine = site.engine()
    gateway = site.gateway([engine])
    client = openai.OpenAI(base_url=gateway.base_url, api_key=gateway.key(), max_retries=0)
    with client:
        answer = client.chat.completions.create(
            model="sim-model", messages=[{"role": "user", "content": "hello world"}], max_tokens=5
        )
    assert answer.model == "sim-model"
    assert answer.usage.completion_tokens == 5
    record = gateway.records.last(endpoint="chat")
    assert record["status"] == 200
    assert record["completion_tokens"] == 5


def test_a_wrong_key_raises_the_clients_own_exception(site):
    gateway = site.gateway([site.engine()])
    client = openai.OpenAI(base_url=gateway.base_url, api_key="gw_nope", max_retries=0)
    with client, pytest.raises(openai.AuthenticationError):
        client.models.list()
