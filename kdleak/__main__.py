"""``python -m kdleak`` is the same as ``kdleak``."""

from kdleak.cli.entry import main

if __name__ == "__main__":
    main()
