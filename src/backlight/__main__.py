"""`python -m backlight` is the command `backlight`."""

from backlight.cli import main

if __name__ == "__main__":
    main()
