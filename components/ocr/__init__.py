"""Reading of pictures."""
