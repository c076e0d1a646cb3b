"""Callbacks over HTTP: how a checker asks an application what became of a half message, and how that is answered.

Both ends are here, so that they cannot drift apart: `signing` and `protocol` are used by `outbox checker run` and by
the receiving end, which is `CallbackReceiver`.
"""

from __future__ import annotations

from outbox.callbacks.receiver import CallbackReceiver
from outbox.callbacks.signing import Secrets, SignatureError

__all__ = ["CallbackReceiver", "Secrets", "SignatureError"]
