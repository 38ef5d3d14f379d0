"""Says which request each function of Determined's bindings sends, by calling all of them with made-up arguments.

Prints a JSON object: the method and path of each, in which `{}` stands for an argument.
"""

import enum
import inspect
import json
import typing

from determined.common.api import bindings

# Two made-up values of each kind: where the paths of two calls differ, there an argument is.
NUMBERS = (101, 102)
TEXTS = ("one", "two")


class Sent(Exception):
    """The request that would have been sent."""

    def __init__(self, method: str, path: str) -> None:
        super().__init__()
        self.method = method
        self.path = path


class Recorder:
    """A session that sends nothing."""

    def _do_request(self, *, method: str, path: str, **_rest: object) -> typing.NoReturn:
        raise Sent(method, path)


def made_up(annotation: object, variant: int) -> object:
    """A value of a type that the bindings name."""
    found = (
        typing.ForwardRef(annotation)._evaluate(vars(bindings), None, frozenset())
        if isinstance(annotation, str)
        else annotation
    )
    origin = typing.get_origin(found)
    if origin is typing.Union:
        return made_up(typing.get_args(found)[0], variant)
    if origin is not None:
        return {} if origin is dict else []
    if isinstance(found, type) and issubclass(found, enum.Enum):
        return next(iter(found))
    simple: dict[object, object] = {int: NUMBERS[variant], str: TEXTS[variant], bool: False, float: 1.0}
    if found in simple:
        return simple[found]
    assert isinstance(found, type), found
    return found(**arguments(found, variant))


def arguments(function: typing.Callable[..., object], variant: int) -> dict[str, object]:
    """The arguments that a function, or the class of a message, must have."""
    signature = inspect.signature(function)
    return {
        name: made_up(parameter.annotation, variant)
        for name, parameter in signature.parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and parameter.default is inspect.Parameter.empty
    }


def sent(function: typing.Callable[..., object], variant: int) -> Sent:
    """What a function sends."""
    try:
        answer = function(Recorder(), **arguments(function, variant))
        # Streams send when they are read.
        list(typing.cast(typing.Iterable[object], answer))
    except Sent as request:
        return request
    raise AssertionError(f"{function.__name__} sends nothing")


def request_of(function: typing.Callable[..., object]) -> list[str]:
    """Method and path, with `{}` for arguments."""
    first, second = sent(function, 0), sent(function, 1)
    parts = zip(first.path.split("/"), second.path.split("/"), strict=True)
    return [first.method, "/".join(one if one == other else "{}" for one, other in parts)]


if __name__ == "__main__":
    verbs = ("get_", "post_", "put_", "patch_", "delete_")
    functions = {name: value for name, value in vars(bindings).items() if name.startswith(verbs)}
    print(json.dumps({name: request_of(function) for name, function in functions.items()}))
