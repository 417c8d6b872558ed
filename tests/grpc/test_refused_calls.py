"""Calls that gRPC itself refuses, and what is left of those: nothing."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import grpc
import grpc.aio
import pytest

import evenly
import evenly.context
import evenly.grpc
from tests.grpc.plain import (
    ANSWERS,
    KINDS,
    Listed,
    answer,
    begin,
    quick,
    served,
    settled,
)

every_kind = pytest.mark.parametrize("kind", KINDS)


async def test_a_call_that_was_given_up_is_not_kept_for_its_deadline() -> None:
    async with evenly.grpc.channel(Listed(), config=quick()) as channel:
        for kind in KINDS:
            call = begin(channel, kind, timeout=3600.0)
            call.cancel()
            gone = weakref.ref(call)
            del call
            gc.collect()
            assert gone() is None


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"metadata": 5}, id="no metadata at all"),
        pytest.param({"metadata": (("key", 5),)}, id="a value that is no text"),
        pytest.param({"metadata": (("a key", "x"),)}, id="a key with a space"),
        pytest.param({"metadata": ("key",)}, id="not in pairs"),
        pytest.param(
            {"credentials": grpc.access_token_call_credentials("x")}, id="a token in the clear"
        ),
    ],
)
@pytest.mark.parametrize("is_connected", [True, False], ids=["connected", "not connected yet"])
@every_kind
async def test_a_call_that_grpc_refuses_leaves_nothing_behind(
    kind: str, is_connected: bool, options: dict[str, Any]
) -> None:
    async with served() as (_, channel):
        if is_connected:
            await channel.channel_ready()

        async def outcome() -> object:
            try:
                return await answer(begin(channel, kind, timeout=5.0, **options))
            except grpc.aio.AioRpcError as error:
                return error.code()
            except Exception as error:  # noqa: BLE001 -- gRPC has many
                return type(error).__name__

        other = begin(channel, kind)
        complaints = ("TypeError", "ValueError", "UsageError", "ExecuteBatchError")
        assert await outcome() in (grpc.StatusCode.INTERNAL, *complaints)
        assert await answer(other) == ANSWERS[kind]
        await settled(channel)
        assert await answer(begin(channel, kind)) == ANSWERS[kind]
