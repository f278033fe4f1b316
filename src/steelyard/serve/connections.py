"""HTTP connections that end when a client sends or reads too slowly."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS = 10.0
"""Seconds within which a request must arrive completely, from its first byte or from the connection on."""
RESPONSE_SECONDS = 60.0
"""Seconds within which a reply must be taken, from the arrival of its request on."""


class PatientProtocol(H11Protocol):
    """Uvicorn's HTTP/1.1 with timeouts: a client that is too slow is disconnected."""

    request_seconds = REQUEST_SECONDS
    response_seconds = RESPONSE_SECONDS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        # asyncio does this only for sockets made with an explicit protocol number; without it a reply's body waits
        # 40 ms for the client to acknowledge its headers
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._timer: asyncio.TimerHandle | None = None
        self._phase = ""
        self._enter("request")

    def data_received(self, data: bytes) -> None:
        """Take bytes: of a request that is under way, or the first of the next."""
        if self._phase == "idle":
            self._enter("request")
        super().data_received(data)
        if self._phase == "request" and self.conn.their_state in (h11.DONE, h11.MUST_CLOSE, h11.CLOSED):
            self._enter("response")

    def on_response_complete(self) -> None:
        """Wait for the client to have taken the reply."""
        super().on_response_complete()
        self._enter("idle")

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._cancel()
        super().connection_lost(exc)

    def _enter(self, phase: str) -> None:
        self._cancel()
        self._phase = phase
        seconds = self.request_seconds if phase == "request" else self.response_seconds
        self._timer = asyncio.get_running_loop().call_later(seconds, self._late)

    def _late(self) -> None:
        if self._phase != "idle" or self.transport.is_closing() or self.transport.get_write_buffer_size() > 0:
            self.transport.abort()

    def _cancel(self) -> None:
        timer: Any = self._timer
        if timer is not None:
            timer.cancel()
