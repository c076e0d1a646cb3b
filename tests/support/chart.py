"""Renders deploy/chart with the part of Go's templates that it uses: where there is no Helm, and next to it.

`tests/unit/test_chart.py` compares the result with Helm's where there is one. What this does not know it refuses.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).resolve().parents[2] / "deploy" / "chart"
RELEASE = {"Name": "shop", "Namespace": "default"}
_ACTION = re.compile(r"\{\{(-?)\s*(.*?)\s*(-?)\}\}", re.DOTALL)
_WORD = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s"]+')


@dataclass
class Block:
    """A part of a template: text, an expression, or what an `if` or a `with` holds."""

    kind: str
    text: str = ""
    body: list[Block] = field(default_factory=list)


def values() -> dict[str, Any]:
    """Return the chart's own values."""
    found: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    return found


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with changes, as `helm --values` merges them: tables are merged, lists are replaced."""
    return {
        **base,
        **{
            name: merged(base[name], value)
            if isinstance(value, Mapping) and isinstance(base.get(name), Mapping)
            else value
            for name, value in changes.items()
        },
    }


def rendered(changes: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """Return the objects of a release named `shop`, with these values changed."""
    chart: dict[str, Any] = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    context = {
        "Values": merged(values(), changes or {}),
        "Release": RELEASE,
        "Chart": {"AppVersion": chart["appVersion"]},
        "Files": {"Get": lambda name: (CHART / name).read_text(encoding="utf-8")},
    }
    texts = (
        render(path.read_text(encoding="utf-8"), context)
        for path in sorted((CHART / "templates").glob("*.yaml"))
    )
    return [each for text in texts for each in yaml.safe_load_all(text) if each is not None]


def render(template: str, context: Mapping[str, Any]) -> str:
    """Render one template."""
    return "".join(_written(block, context) for block in _parsed(template))


def _parsed(template: str) -> list[Block]:
    stack: list[list[Block]] = [[]]
    for block in _tokens(template):
        match block.kind:
            case "if" | "with":
                stack[-1].append(block)
                stack.append(block.body)
            case "end":
                stack.pop()
            case _:
                stack[-1].append(block)
    (top,) = stack
    return top


def _tokens(template: str) -> Iterator[Block]:
    at, trim = 0, False
    for action in _ACTION.finditer(template):
        text = template[at : action.start()]
        text = text.lstrip() if trim else text
        yield Block("text", text.rstrip() if action[1] else text)
        at, trim = action.end(), bool(action[3])
        keyword, _, rest = action[2].partition(" ")
        assert keyword not in {"else", "range", "define", "template", "block", "include"}, (
            f"not known: {keyword}"
        )
        yield Block(keyword, rest) if keyword in {"if", "with", "end"} else Block("expression", action[2])
    yield Block("text", template[at:].lstrip() if trim else template[at:])


def _written(block: Block, context: Any) -> str:
    if block.kind == "text":
        return block.text
    found = _value(block.text, context)
    if block.kind == "expression":
        return _shown(found)
    inner = found if block.kind == "with" else context
    return "".join(_written(each, inner) for each in block.body) if found else ""


def _value(expression: str, context: Any) -> Any:
    """Evaluate a pipeline: the result of each step is the last argument of the next."""
    result: list[Any] = []
    for step in expression.split(" | "):
        first, *others = _WORD.findall(step)
        arguments = [_term(word, context) for word in others] + result
        function = FUNCTIONS[first] if first in FUNCTIONS else _term(first, context)
        result = [function(*arguments) if callable(function) else function]
    return result[0]


def _term(word: str, context: Any) -> Any:
    if word.startswith('"'):
        return json.loads(word)
    if re.fullmatch(r"-?\d+", word):
        return int(word)
    assert word.startswith("."), f"not known: {word}"
    for name in word.split(".")[1:]:
        if name:
            context = context[name]  # a value that does not exist is a mistake in the chart
    return context


def _shown(value: Any) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)


def _nindent(spaces: int, text: str) -> str:
    return "\n" + "\n".join(" " * spaces + line if line else line for line in text.split("\n"))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "default": lambda other, value: value or other,
    "nindent": _nindent,
    "quote": lambda value: json.dumps(_shown(value)),
    "sha256sum": lambda text: hashlib.sha256(text.encode()).hexdigest(),
    "toYaml": lambda value: yaml.safe_dump(value, default_flow_style=False).rstrip("\n"),
}
