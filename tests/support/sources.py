"""Python files of the checkout as syntax trees: each is read and walked once in a process, whoever asks."""

from __future__ import annotations

import ast
import functools
from pathlib import Path


@functools.cache
def parse(path: Path) -> ast.Module:
    """Return the syntax tree of a file; it must not be changed."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@functools.cache
def walk(tree: ast.Module) -> tuple[ast.AST, ...]:
    """Return all nodes of a tree of `parse`, in the order of `ast.walk`."""
    return tuple(ast.walk(tree))
