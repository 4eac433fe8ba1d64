"""`python -m p2ptrain` and `p2ptrain`: imports the command line only once Ctrl-C is looked after."""

import sys


def main() -> int:
    """Run the command line; a Ctrl-C during the imports ends it as quietly as one later."""
    try:
        from p2ptrain.cli import main as command_line

        return command_line()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
