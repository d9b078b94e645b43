"""Classes, functions and macros of a checkout by their syntax; nothing is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path


class Checkout:
    """The package omnigibson of a checkout. Example: Checkout(folder).parameters("Environment", "reset")."""

    def __init__(self, folder: Path):
        root = folder / "OmniGibson" / "omnigibson"
        self.modules: dict[str, ast.Module] = {}
        self.classes: dict[str, ast.ClassDef] = {}
        for file in sorted(root.rglob("*.py")):
            name = file.relative_to(root).as_posix()
            if name.startswith(("examples/", "sampling/")):
                continue
            self.modules[name] = ast.parse(file.read_text(encoding="utf-8"))
            for node in ast.walk(self.modules[name]):  # the simulator's class is made within a function
                if isinstance(node, ast.ClassDef):
                    self.classes.setdefault(node.name, node)

    def lineage(self, name: str) -> Iterator[ast.ClassDef]:
        """Yield a class and those that it inherits from, as far as they are in the checkout."""
        node = self.classes.get(name)
        if node is None:
            return
        yield node
        for base in node.bases:
            yield from self.lineage(base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", ""))

    def functions(self, name: str, method: str) -> list[ast.FunctionDef]:
        """Return the definitions of a method or property in the first class that has one."""
        for node in self.lineage(name):
            found = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == method]
            if found:
                return found
        return []

    def parameters(self, name: str, method: str) -> set[str] | None:
        """Return the parameters of a method; None if the class has no such method."""
        found = self.functions(name, method)
        if not found:
            return None
        arguments = found[0].args
        return {one.arg for one in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]}

    def all_parameters(self, name: str) -> set[str]:
        """Return the parameters of the constructors of a class and of those that it inherits from."""
        return {one for node in self.lineage(name) for one in self.parameters(node.name, "__init__") or ()}

    def all_functions(self, name: str, method: str) -> list[ast.FunctionDef]:
        """Return every definition of a method, of a class and of those that it inherits from."""
        return [
            one
            for node in self.lineage(name)
            for one in node.body
            if isinstance(one, ast.FunctionDef) and one.name == method
        ]

    def has_attribute(self, name: str, attribute: str) -> bool:
        """Return whether a class defines a method, property or attribute, or assigns it to `self`."""
        if self.functions(name, attribute):
            return True
        for node in self.lineage(name):
            for one in ast.walk(node):
                is_stored = isinstance(one, ast.Attribute | ast.Name) and isinstance(one.ctx, ast.Store)
                if is_stored and attribute == (one.attr if isinstance(one, ast.Attribute) else one.id):
                    return True
        return False

    def is_settable(self, name: str, attribute: str) -> bool:
        """Return whether a property has a setter."""
        decorators = (ast.unparse(one) for found in self.functions(name, attribute) for one in found.decorator_list)
        return f"{attribute}.setter" in decorators

    def macros(self, owner: str) -> dict[str, str]:
        """Return macro -> module, of assignments to attributes of `gm` or of a module's `m`."""
        found = {}
        for module, tree in self.modules.items():
            for node in ast.walk(tree):
                for target in node.targets if isinstance(node, ast.Assign) else ():
                    if isinstance(target, ast.Attribute) and getattr(target.value, "id", "") == owner:
                        found.setdefault(target.attr, module)
        return found


def texts_of(function: ast.FunctionDef) -> Iterator[str]:
    """Yield the strings of a function; "{}" stands for each value in an f-string. Also names of keyword arguments."""
    for node in ast.walk(function):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(one.value if isinstance(one, ast.Constant) else "{}" for one in node.values)
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg
