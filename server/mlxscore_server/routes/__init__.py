"""Endpoints, one noun a file. Know the engine, not MLX."""
