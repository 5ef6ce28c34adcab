"""``python -m motley`` is the command ``motley``; so is the script of that name.

Nothing is imported before Ctrl-C is seen to: until a command begins its work there is nothing to save, so it just ends.
"""

import os
import signal
import sys
from typing import NoReturn

INTERRUPTED = 130  # the exit code of what a shell's user has ended


def leave_at_once(*_: object) -> None:
    """Ends the process where it stands; an import that is interrupted in the middle may hang, or tell of itself."""
    os.write(2, b"Interrupted.\n")
    os._exit(INTERRUPTED)


def main() -> NoReturn:
    """The command, heard from its first moment to its last."""
    for which in (signal.SIGINT, signal.SIGTERM):
        signal.signal(which, leave_at_once)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that knows ASCII alone gets question marks
    try:
        from motley.commands.cli import main as command

        command()
    except SystemExit as ended:
        if ended.code == INTERRUPTED:
            # Python ends itself by the signal where Ctrl-C met a text that it had been given to run, as it is to make
            # a data class, even if that was seen to; this is the way round.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(INTERRUPTED)
        raise
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done; taking the interpreter down needs no witness


if __name__ == "__main__":
    main()
