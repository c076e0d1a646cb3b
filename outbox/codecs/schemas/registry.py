"""The client of a schema registry: Confluent's own, with time limits, errors of ours, and no password in any text.

Confluent's client has no time-out and tries again for seconds, and its serializers ask the registry at the first record
of a subject. In a transaction that holds locks, this must not happen. So a serializer gets `Remembered` as its client:
it asks while schemas are loaded, and from then on knows only what it has read.

    dies or times out while it loads    nothing is kept: the schema is not loaded, or has what was loaded before
    the registry goes away afterwards   a serializer does not notice
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit, urlunsplit

from outbox.codecs.errors import (
    RegistryError,
    RegistryUnavailableError,
    SchemaNotFoundError,
    SchemaNotLoadedError,
    SchemaRefusedError,
)
from outbox.errors import ConfigurationError
from outbox.extras import needs

PACKAGES = ("confluent_kafka", "attr", "attrs", "authlib", "cachetools", "certifi", "httpx", "httpx2")
"""What Confluent's client of a registry imports."""

with needs("schema-registry", *PACKAGES):
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.error import SchemaRegistryError

DEFAULT_TIMEOUT = 2.0
_OURS = frozenset({"url", "timeout", "max.retries"})
_AWAY = frozenset({408, 425, 429})


class SchemaRegistry:
    """A schema registry with the REST interface of Confluent's; any number of threads and schemas share one."""

    def __init__(
        self, url: str, *, config: Mapping[str, Any] | None = None, timeout: float = DEFAULT_TIMEOUT
    ) -> None:
        """Take the address of a registry; nothing is asked yet.

        Args:
            url: Its address, or several of one cluster with commas between them. A user and password in it are taken
                out and used for basic authentication.
            config: Further settings of `confluent_kafka.schema_registry.SchemaRegistryClient`, such as
                `basic.auth.user.info`, `ssl.ca.location` and `bearer.auth.token`.
            timeout: Seconds without a reply, and seconds for a connection, after which a request fails. None is
                repeated.

        Raises:
            ConfigurationError: naming the argument, never its value.
        """
        if not 0 < timeout <= 60:
            raise ConfigurationError(f"timeout: {timeout!r}; allowed: seconds, more than 0, up to 60")
        given = dict(config or {})
        if taken := sorted(_OURS & given.keys()):
            raise ConfigurationError(
                f"config: {taken[0]!r} is not taken there; use the arguments url and timeout"
            )
        self.url, login = _without_login(url)
        """Its address, without a password."""
        if login is not None:
            given.setdefault("basic.auth.user.info", login)
        try:
            self._client = SchemaRegistryClient(
                {"url": self.url, "timeout": timeout, "max.retries": 0, **given}
            )
        except (ValueError, TypeError, OSError) as error:
            # Its own text may hold what was given.
            raise ConfigurationError(
                f"config: the client refuses the settings {', '.join(sorted(given)) or 'url'} "
                f"({type(error).__name__}); see SchemaRegistryClient of confluent-kafka for what it takes"
            ) from None

    def ask(self, method: str, *args: Any, **options: Any) -> Any:
        """Call a method of the client.

        Raises:
            RegistryUnavailableError: it cannot be reached or cannot work now.
            SchemaNotFoundError: it does not know what was asked for.
            SchemaRefusedError: it does not take a schema.
            RegistryError: it refuses the request for another reason.
        """
        try:
            return getattr(self._client, method)(*args, **options)
        except SchemaRegistryError as error:
            status, said = error.http_status_code, f"{self.url} replied {error.http_status_code}"
            if status >= 500 or status in _AWAY:
                raise RegistryUnavailableError(f"the schema registry cannot work now: {said}") from None
            if status in {401, 403}:
                raise RegistryError(
                    f"the schema registry does not admit this client: {said}; check basic.auth.user.info"
                ) from None
            said = f"{said}: {error.error_message}"
            kind = {404: SchemaNotFoundError, 409: SchemaRefusedError, 422: SchemaRefusedError}
            raise kind.get(status, RegistryError)(f"the schema registry refused {method}: {said}") from None
        except Exception as error:  # noqa: BLE001 (its errors are those of several libraries)
            # Connections and time-outs, and what is no reply of a registry: a page of a proxy, no token.
            raise RegistryUnavailableError(
                f"the schema registry {self.url} did not reply to {method}: {type(error).__name__}: {error}"
            ) from None

    def close(self) -> None:
        """Close its connections; loaded schemas go on serializing."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"SchemaRegistry({self.url!r})"


class RegistryReader:
    """The registry as deserializers take it: the methods of the client that they call, with our errors."""

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry

    def config(self) -> dict[str, Any]:
        """Nothing: rules of data contracts are not configured here, and passwords are not handed on."""
        return {}

    def get_schema(self, *args: Any, **options: Any) -> Any:
        """Return a schema by its id."""
        return self._call("get_schema", *args, **options)

    def get_schema_by_guid(self, *args: Any, **options: Any) -> Any:
        """Return a schema by its GUID, which newer serializers of Confluent write into a header."""
        return self._call("get_schema_by_guid", *args, **options)

    def get_version(self, *args: Any, **options: Any) -> Any:
        """Return a version of a subject: a schema that another one refers to."""
        return self._call("get_version", *args, **options)

    def lookup_schema(self, *args: Any, **options: Any) -> Any:
        """Return the id of a schema that a subject has."""
        return self._call("lookup_schema", *args, **options)

    def register_schema(self, *args: Any, **options: Any) -> Any:
        """Register a schema that another one refers to."""
        return self._call("register_schema", *args, **options)

    def register_schema_full_response(self, *args: Any, **options: Any) -> Any:
        """Register a schema."""
        return self._call("register_schema_full_response", *args, **options)

    def _call(self, method: str, *args: Any, **options: Any) -> Any:
        return self._registry.ask(method, *args, **options)


class Remembered(RegistryReader):
    """The registry as a serializer takes it: it asks until it is sealed, and then only remembers."""

    def __init__(self, registry: SchemaRegistry) -> None:
        super().__init__(registry)
        self._known: dict[tuple[Any, ...], Any] = {}
        self._is_sealed = False

    def seal(self) -> None:
        """Ask no more."""
        self._is_sealed = True

    def ids(self, subject: str) -> frozenset[int]:
        """Return the ids that were read or registered for a subject."""
        return frozenset(
            found.schema_id
            for (method, asked, *_), found in self._known.items()
            if asked == subject and method in {"lookup_schema", "register_schema_full_response"}
        )

    def _call(self, method: str, *args: Any, **options: Any) -> Any:
        wanted = (method, *args, *sorted(options.items()))
        if wanted not in self._known:
            if self._is_sealed:
                raise SchemaNotLoadedError(
                    f"the serializer asks for {method} {args[0]!r}, which was not loaded: call load() again"
                )
            self._known[wanted] = super()._call(method, *args, **options)
        return self._known[wanted]


def _without_login(url: str) -> tuple[str, str | None]:
    """Return addresses without user and password, and these as `user:password`."""
    if not isinstance(url, str):
        raise ConfigurationError(
            f"url: is {type(url).__name__}; allowed: text, such as https://registry:8081"
        )
    addresses, logins = [], []
    for each in url.split(","):
        try:
            parts = urlsplit(each.strip())
            host, port = parts.hostname, parts.port
        except ValueError:
            parts, host, port = urlsplit(""), None, None
        if parts.scheme not in {"http", "https"} or not host:
            raise ConfigurationError(
                "url: is not an address of http or https; allowed: such as https://registry:8081"
            )
        place = f"[{host}]" if ":" in host else host
        addresses.append(
            urlunsplit(
                (parts.scheme, place if port is None else f"{place}:{port}", parts.path.rstrip("/"), "", "")
            )
        )
        if parts.username is not None:
            logins.append(f"{unquote(parts.username)}:{unquote(parts.password or '')}")
    if len(set(logins)) > 1:
        raise ConfigurationError("url: its addresses have several users; allowed: one user for all of them")
    return ",".join(addresses), logins[0] if logins else None
