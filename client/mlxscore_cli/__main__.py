"""`python -m mlxscore_cli`."""

from mlxscore_cli.command import main

if __name__ == "__main__":
    main()
