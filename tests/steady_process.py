"""`steady_server` as a process for tests."""

import os
import re
import sys

from server_process import TESTS, ServerProcess

# Not this machine's own settings.
ENV = {key: value for key, value in os.environ.items() if not key.startswith("MLXSCORE_")}


class Steady(ServerProcess):
    """The model by formula behind the real server."""

    def __init__(self, *flags: str, seconds_per_token: float = 0.0) -> None:
        command = (sys.executable, str(TESTS / "steady_server.py"), str(seconds_per_token))
        super().__init__(*flags, command=command, env=ENV)

    def troubles(self) -> list[str]:
        """What the log should never hold, whatever clients send."""
        return [line for line in self.lines if re.search(r"Traceback|ERROR|CRITICAL", line)]
