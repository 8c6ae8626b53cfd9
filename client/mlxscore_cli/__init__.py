"""`mlxscore`: the client on the command line (the extra `cli`). Never imports MLX."""
