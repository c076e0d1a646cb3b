"""Header filters: what they are given, what they are called, and what becomes of one that cannot decide."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from outbox.errors import InvalidSubscriptionError
from outbox.inbox import HeaderFilter
from outbox.inbox.header_filters import UNDECIDED, Headers, UndecidedError
from outbox.inbox.messages import HeaderValue
from outbox.inbox.settings import subscription_of
from tests.support.members import member_of


def is_german(headers: Headers) -> bool:
    return headers.get("country") == b"DE"


async def decides_later(headers: Headers) -> bool:
    return bool(headers)


def yields(headers: Headers) -> object:
    yield bool(headers)


class Choice:
    """An object that can be called, and one whose method can."""

    def __call__(self, headers: Headers) -> bool:
        return bool(headers)

    def decide(self, headers: Headers) -> bool:
        return bool(headers)


def made(country: bytes) -> Callable[[Headers], bool]:
    def chosen(headers: Headers) -> bool:
        return headers.get("country") == country

    return chosen


def named(function: Callable[[Headers], object]) -> HeaderFilter:
    return HeaderFilter("named", function)  # type: ignore[arg-type]


def test_a_filter_gets_the_first_value_of_each_header_as_bytes() -> None:
    seen: list[dict[str, HeaderValue]] = []

    def keep(headers: Headers) -> bool:
        seen.append(dict(headers))
        return True

    assert named(keep).selects((("a", b"1"), ("b", None), ("a", b"2"), ("A", b"\xff")))
    assert seen == [{"a": b"1", "b": None, "A": b"\xff"}]


def test_a_filter_cannot_change_the_headers() -> None:
    def clear(headers: Headers) -> bool:
        del headers["a"]  # type: ignore[attr-defined]
        return True

    with pytest.raises(UndecidedError, match="TypeError"):
        named(clear).selects((("a", b"1"),))


def test_a_function_is_named_by_its_module_and_its_name() -> None:
    found = subscription_of({"t": is_german})["t"]
    assert str(found) == f"headers by {__name__}:is_german"
    assert found == HeaderFilter(f"{__name__}:is_german", lambda _: True)
    assert found.selects((("country", b"DE"),))
    assert not found.selects(())


def test_filters_of_two_names_are_two_subscriptions() -> None:
    def stored(topics: dict[str, HeaderFilter | str]) -> str:
        return member_of("g", topics).subscription_json

    german, french = HeaderFilter("german", made(b"DE")), HeaderFilter("french", made(b"FR"))
    assert stored({"t": german}) == '{"t": "headers by german"}' == stored({"t": named_german()})
    assert (
        len({stored({"t": german}), stored({"t": french}), stored({"t": "german"}), stored({"t": "*"})}) == 4
    )


def named_german() -> HeaderFilter:
    return HeaderFilter("german", made(b"DE"))


@pytest.mark.parametrize(
    "function",
    [lambda headers: True, made(b"DE"), Choice(), Choice().decide, functools.partial(is_german), len, Choice],
    ids=["lambda", "closure", "object", "method", "partial", "builtin", "class"],
)
def test_a_function_without_a_name_of_its_own_is_refused(function: Callable[[Headers], bool]) -> None:
    with pytest.raises(InvalidSubscriptionError, match=r"no name of its own; allowed: .*HeaderFilter\(name"):
        subscription_of({"t": function})
    assert str(HeaderFilter("choice", function)) == "headers by choice"


@pytest.mark.parametrize("function", [decides_later, yields, None, "*"])
def test_what_returns_no_decision_at_once_is_refused(function: Callable[[Headers], bool]) -> None:
    with pytest.raises(InvalidSubscriptionError, match="allowed: a function of the headers"):
        HeaderFilter("name", function)


@pytest.mark.parametrize("name", ["", "a b", "a\n", "x" * 201, None])
def test_a_name_of_a_filter_that_cannot_be_compared_is_refused(name: str) -> None:
    with pytest.raises(InvalidSubscriptionError, match="allowed: 1 to 200 printable characters"):
        HeaderFilter(name, is_german)


@pytest.mark.parametrize("choice", [None, 7, b"paid", ["paid"], {"paid"}])
def test_a_choice_of_another_type_is_refused(choice: str) -> None:
    with pytest.raises(InvalidSubscriptionError, match="is not a text; allowed: "):
        subscription_of({"t": choice})


@pytest.mark.parametrize("returned", [None, 1, "", b"DE", {"a": 1}])
def test_a_filter_that_returns_no_boolean_has_not_decided(returned: object) -> None:
    with pytest.raises(UndecidedError, match=f"{type(returned).__name__}; allowed: True or False"):
        named(lambda _: returned).selects(())


def test_failures_of_one_filter_have_one_fingerprint() -> None:
    def failure(number: int) -> str:
        def fail(_: Headers) -> bool:
            raise KeyError(f"order {number}")

        with pytest.raises(UndecidedError) as found:
            named(fail).selects(())
        assert f"order {number}" in found.value.failure.error
        return found.value.failure.fingerprint

    assert failure(1) == failure(23)
    assert failure(1).startswith(f"{UNDECIDED}named: KeyError at ")


def test_a_filter_that_ends_the_process_is_not_stopped() -> None:
    def leave(_: Headers) -> bool:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        named(leave).selects(())
