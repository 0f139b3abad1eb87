"""The `cornstalk` command."""
