"""The one exception a user may meet: a sentence about what is wrong and a hint what to do."""


class DoctorError(Exception):
    """Bad input or an impossible request; the CLI prints it as one line and exits with `exit_code`."""

    exit_code = 2

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class NoDiagnosis(DoctorError):
    """The request was fine, but nothing could be examined: exit code 3, never a silent pass."""

    exit_code = 3


class Interrupted(DoctorError):
    """Ended by the user or the system before it was through; the hint says what is kept."""

    exit_code = 130


def reason_of(problem: Exception) -> str:
    """Return why a file or program is not available: the system's message without its number, to end a sentence."""
    return str(getattr(problem, "strerror", None) or problem).lower()


def fault(file: object, line: int | None, why: str, hint: str | None = None) -> DoctorError:
    """A complaint about a line of a declared file."""
    return DoctorError(f"{file}:{line}: {why}" if line else f"{file}: {why}", hint)
