"""`python -m doctor` is the same program as `attn-doctor`."""

from doctor.cli.entry import main

if __name__ == "__main__":
    main()
