"""Prints every subcommand of `det`, one to a line, as its parser has them."""

import argparse
from collections.abc import Iterator

from determined.cli import add_args
from determined.cli.cli import all_args_description, make_parser


def leaves(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[str]:
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        yield " ".join(path)
    for action in below:
        # Other names of a subcommand come after its own.
        own = {id(each): name for name, each in reversed(action.choices.items())}
        for name in own.values():
            yield from leaves(action.choices[name], (*path, name))


if __name__ == "__main__":
    parser = make_parser()
    add_args(parser, all_args_description)
    print("\n".join(leaf for leaf in leaves(parser) if leaf.split()[-1] != "help"))
