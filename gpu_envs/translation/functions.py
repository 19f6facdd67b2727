"""Translation of one function: source to tree, checks, C++."""

import ast
import inspect
import re
import types
from collections.abc import Mapping, Sequence
from typing import Any, final

from gpu_envs.errors import did_you_mean
from gpu_envs.translation import tree
from gpu_envs.translation.arguments import CPP_PARAMETERS
from gpu_envs.translation.checks.assigned import check_assigned
from gpu_envs.translation.checks.races import check_races
from gpu_envs.translation.declarations import declare_variables
from gpu_envs.translation.effects import effects_of
from gpu_envs.translation.order import order_evaluation
from gpu_envs.translation.printer import print_body
from gpu_envs.translation.reading.reader import ascii_name, scope_of
from gpu_envs.translation.reading.statements import Statements
from gpu_envs.translation.sources import FunctionSource, RefusedError, annotation, read_source
from gpu_envs.translation.tree import Block
from gpu_envs.translation.types import NUMBERS, Number, Struct, Tuple, Type
from gpu_envs.translation.unit import SourceLine, Unit
from gpu_envs.translation.walk import always_exits, expressions, field_of, places, statements


@final
class FunctionReader(Statements):
    """The complete reader: reads the body of a function."""

    def function(self, python_function: types.FunctionType, node: ast.Call) -> tree.Function:
        functions = self.unit.functions
        if python_function not in functions:
            functions[python_function] = None
            # Cannot clash with local variables, which start with a lower-case letter or end with an underscore.
            cpp = f"Rule_{ascii_name(python_function.__name__).strip('_')}_{len(functions)}"
            source = read_source(python_function, ast.unparse(node.func))
            with source.at(source.tree):
                functions[python_function] = translate_helper(self.unit, source, cpp)
        function = functions[python_function]
        if function is None:
            raise RefusedError(f"{python_function.__name__} calls itself", "Write a loop", node)
        return function

    def parameter(self, name: str, type_name: str, default: Any, *, is_entry: bool) -> tree.Parameter:
        """Return the parameter for an argument annotated ``type_name``; ``is_entry``: the driver calls the function."""
        kind = NUMBERS.get(type_name) or self.unit.arguments.all[type_name]
        if isinstance(kind, Number):
            return tree.Parameter(tree.Variable(name, self.cpp_name(name)), kind, kind.cpp, default)
        cpp_type, cpp = CPP_PARAMETERS[type_name]
        if type_name == "Random" and not is_entry:  # a helper may have several
            cpp = self.cpp_name(name)
        if type_name == "Mask" and "World" in self.unit.arguments.all:
            cpp_type = f"const {cpp_type}"
        return tree.Parameter(tree.Variable(name, cpp), kind, cpp_type, default)

    def body(self, parameters: Sequence[tree.Parameter], result: Type | None, is_phased: bool | None) -> Block:
        """Return the body, read again until its variables' types no longer change; refuse an end without ``result``."""
        source, self.result, self.is_phased = self.source, result, is_phased
        self.arguments = {p.variable.name: tree.Local(p.kind, p.variable) for p in parameters}
        scope = scope_of(0, source.tree.body, lambda loop: bool(self.method_of(loop)))
        body: Block = ()
        self.types_changed = True
        while self.types_changed:
            self.restart()
            self.scopes, self.between_phases = [scope], bool(self.is_phased)
            for name, argument in self.arguments.items():
                if isinstance(argument.kind, Number) and name in scope.assigned:
                    self.record_type(name, argument.kind, source.tree)
            body = self.block(source.tree.body)
        if result is not None and not always_exits(body):
            is_step = isinstance(result, Tuple) and result.cpp == "Outcome"
            hint = f"End it with {'return reward, terminated' if is_step else 'return ...'}"
            raise RefusedError(f"{source.name} may end without a result", hint, source.tree.body[-1])
        return body


def translate_function(
    unit: Unit,
    source: FunctionSource,
    cpp: str,
    annotations: Mapping[str, str],
    result: Type | None,
    *,
    is_phased: bool | None = None,
    read_only: frozenset[str] | None = None,
) -> tree.Function:
    """Translate a function, run all checks of one function, and add its C++ to the unit.

    Args:
        unit: Translation unit of the spec.
        source: Source of the function.
        cpp: Name of the function in C++.
        annotations: Annotations of the arguments, by name.
        result: Type of the result; None: no result.
        is_phased: Whether the function's top level lies between phases. None: it does if the function has phases.
        read_only: Types, such as State, that a function called by the driver must not change. None: rules call it.
    """
    reader = FunctionReader(unit, source)
    reader.names |= set(annotations)
    signature = inspect.signature(source.function).parameters
    parameters = tuple(
        reader.parameter(name, type_name, signature[name].default, is_entry=read_only is not None)
        for name, type_name in annotations.items()
    )
    arguments = frozenset(p.variable for p in parameters)
    body = reader.body(parameters, result, is_phased)
    effects = effects_of(body)
    _refuse_changes(source.name, body, read_only or frozenset())
    effects.always_set = check_assigned(body, arguments)
    effects.accesses = check_races(body, arguments)
    if read_only is None and not effects.phases:
        read_only = frozenset({"State", "World"}) - effects.owners
    lines = print_body(declare_variables(order_evaluation(reader, body), reader.types, arguments))
    # The macros of phases use the variable team, and FOR_EACH_COLUMN uses row.
    text = "\n".join(line.text for line in lines)
    text = re.sub("FOR_EACH_(AGENT|ELEMENT)", "team", text).replace("FOR_EACH_COLUMN", "row")
    used = set(re.findall(r"(?<![.:\w])[A-Za-z_]\w*\b(?!::)", text))
    parameter_texts = []
    for name, parameter in zip(annotations, parameters, strict=True):
        kind = reader.types.get(parameter.variable, parameter.kind)
        cpp_type = kind.cpp if isinstance(kind, Number) else parameter.cpp_type
        cpp_type = f"const {cpp_type}" if annotations[name] in (read_only or ()) else cpp_type
        parameter_texts.append(f"{cpp_type} {parameter.variable.cpp}" if parameter.variable.cpp in used else cpp_type)
    cpp_result = result.cpp if isinstance(result, Number | Tuple) else "void"
    first = SourceLine(source.tree.lineno, f"FN {cpp_result} {cpp}({', '.join(parameter_texts)}) {{")
    unit.parts.append((source.file, [first, *lines, SourceLine(0, "}"), SourceLine(0, "")]))
    return tree.Function(source, cpp, parameters, result, effects)


def _refuse_changes(name: str, body: Block, read_only: frozenset[str]) -> None:
    """Refuse statements and calls that change the arguments ``read_only``; ``name``: the function's."""
    for stmt in statements(body):
        changed = [(field_of(place)[0], place.at) for place in places(stmt)]
        for expr in expressions(stmt):
            if isinstance(expr, tree.Invoke):
                changed += [(owner, expr.at) for owner in sorted(expr.function.effects.owners)]
        for owner, at in changed:
            if owner in read_only:
                problem = f"{name} must not change the {owner.lower()}"
                raise RefusedError(problem, "Change it in step or reset", at or stmt.at)


# --- functions that rules call ---


def translate_helper(unit: Unit, source: FunctionSource, cpp: str) -> tree.Function:
    """Translate a function that rules call, with the types of its annotations, and add it to the unit."""
    annotations = source.annotations
    allowed = {**NUMBERS, **{name: kind for name, kind in unit.arguments.all.items() if name in CPP_PARAMETERS}}
    used: set[str] = set()
    for node, type_name in zip(source.arguments, annotations.values(), strict=True):
        if type_name not in allowed:
            problem = f"has the annotation {type_name}" if type_name else "has no annotation"
            suggestion = did_you_mean(type_name, allowed) if type_name else ""
            hint = f"Annotate it with {', '.join(allowed)}"
            raise RefusedError(f"the argument {node.arg!r} {problem}{suggestion}".rstrip("."), hint, node)
        if type_name in used and isinstance(allowed[type_name], Struct) and type_name != "Random":
            raise RefusedError(f"{source.name} has two arguments of type {type_name}", "Remove the second one", node)
        used.add(type_name)
    return translate_function(unit, source, cpp, annotations, _result_type(unit, source))


def _result_type(unit: Unit, source: FunctionSource) -> Number | Tuple | None:
    returns = source.tree.returns
    type_name = annotation(returns)
    returning = any(isinstance(n, ast.Return) and n.value is not None for n in ast.walk(source.tree))
    if type_name == "None" or (not type_name and not returning):
        return None
    if type_name in NUMBERS:
        return NUMBERS[type_name]
    if type_name.startswith("tuple[") and type_name.endswith("]"):
        parts = [part.strip() for part in type_name[len("tuple[") : -1].split(",")]
        if all(part in NUMBERS for part in parts):
            return unit.tuple_type(tuple(NUMBERS[part] for part in parts))
    problem = f"returns {type_name}" if type_name else "returns a value, and has no return annotation"
    hint = "Annotate it with -> float, int, bool, None or tuple[float, ...]"
    raise RefusedError(f"{source.name} {problem}", hint, returns)
