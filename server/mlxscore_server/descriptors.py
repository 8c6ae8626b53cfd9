"""How many files and connections this process may have open. Knows no HTTP."""

import logging

log = logging.getLogger("mlxscore")

_WANTED = 65_536
# macOS takes no more than this for a process, whatever its hard limit says.
_MACOS_MOST = 10_240
_FEW = 1_024


def raise_limit() -> int | None:
    """Raise the soft limit, which is 256 on macOS, as far as the hard one allows; what it is now, None
    where the system has none."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    for most in (_WANTED, _MACOS_MOST):
        wanted = most if hard == unlimited else min(most, hard)
        if soft == unlimited or soft >= wanted:
            break
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:
            log.debug("%d open files are not allowed: %s", wanted, error)
        else:
            soft = wanted
            break
    if soft != unlimited and soft < _FEW:
        log.warning("only %d files and connections may be open at once (ulimit -n)", soft)
    return None if soft == unlimited else soft
