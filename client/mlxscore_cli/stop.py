"""Why a command ends early, as a line and an exit code."""


class Stop(Exception):
    """The command cannot go on. `code`: 1, the server said no; 2, wrong usage or no server."""

    def __init__(self, message: str, code: int = 2) -> None:
        super().__init__(message)
        self.code = code
