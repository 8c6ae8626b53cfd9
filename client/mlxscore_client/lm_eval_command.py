"""`mlxscore-lm-eval`: lm_eval's own command line, with the model type `mlxscore` in it."""

import sys

_NAME = "mlxscore-lm-eval"


def main() -> None:
    """Register the class, then leave everything to lm_eval. 1: a package is missing."""
    try:
        # The packages of the extra; what they do not find is for lm_eval itself to say.
        from lm_eval.__main__ import cli_evaluate

        import mlxscore_client.lm_eval
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package.startswith("mlxscore"):
            raise  # a bug of ours
        sys.exit(
            f"{_NAME}: error: {package or 'a package'} is not installed; "
            "this command needs: pip install 'mlxscore[lm-eval]'"
        )
    assert mlxscore_client.lm_eval.MlxscoreLM, "this is a bug: the import registers the class"
    cli_evaluate()


if __name__ == "__main__":
    main()
