"""The mlxscore server: FastAPI in front, one MLX thread behind."""

__version__ = "0.1.0"
