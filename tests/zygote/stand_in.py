"""Stands for a Python program: has it forked by the zygote, passes signals on, and ends as it ended.

It lies as `python` beside the zygote's socket, and takes `[-u] script.py …`, `[-u] -m module …` and `-c text …`. For a
hot spare it is the interpreter itself, to which `interpreter` leads: that is made while Python starts.
"""

import json
import os
import signal
import socket
import struct
import sys

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)


def main() -> None:
    """Live as long as the program does."""
    folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    if "INSTEP_SPARE" in os.environ:
        python = os.readlink(os.path.join(folder, "interpreter"))  # noqa: PTH115, PTH118
        os.execv(python, [python, *sys.argv[1:]])
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(os.path.join(folder, "socket"))  # noqa: PTH118
    order = {
        "executable": os.path.abspath(__file__),  # noqa: PTH100
        "arguments": sys.argv[1:],
        "environment": dict(os.environ),
        "folder": os.getcwd(),  # noqa: PTH109
    }
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    socket.send_fds(connection, [json.dumps(order).encode()], [0, 1, 2])
    process = number_from(connection)
    for number in PASSED_ON:
        signal.signal(number, lambda received, _: os.kill(process, received))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    status = number_from(connection)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


def number_from(connection: socket.socket) -> int:
    """What the zygote says next."""
    text = connection.recv(4)
    if not text:
        os._exit(70)
    number: int = struct.unpack("i", text)[0]
    return number


if __name__ == "__main__":
    main()
