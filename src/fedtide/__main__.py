"""The command line as `python -m fedtide`, where the command `fedtide` is not on the PATH."""

from fedtide.cli.entry import main

if __name__ == "__main__":
    main()
