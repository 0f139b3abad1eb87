"""`python -m cornstalk.cli`: the same as the command `cornstalk`, where no script is installed."""

from cornstalk.cli.main import main

if __name__ == "__main__":
    main()
