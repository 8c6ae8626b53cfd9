"""The mlxscore server: FastAPI in front, one MLX thread behind."""
