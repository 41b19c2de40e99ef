"""Long files take a time in proportion to their lines."""

import time

import pytest

LONG = {
    "environment.yml": lambda count: "dependencies:\n" + "".join(f"  - package{n}={n}.0\n" for n in range(count)),
    "requirements.txt": lambda count: "".join(f"package{n}>={n}.0\n" for n in range(count)),
    "run.sh": lambda count: "".join(f"pip install package{n}=={n}.0\n" for n in range(count)),
    "Dockerfile": lambda count: (
        "FROM python:3.11\n" + "".join(f"RUN pip install package{n}~={n}.0\n" for n in range(count))
    ),
}


@pytest.mark.parametrize("name", LONG)
def test_four_times_the_lines_take_no_sixteen_times_the_time(name, read):
    """Each open package was once compared with each other: 4,000 lines took 5 s, 100,000 an hour."""
    read({name: LONG[name](10)})  # what is loaded once

    def seconds(count):
        """The least of three, since the garbage collector and other work on the machine only ever add."""
        times = []
        for _ in range(3):
            began = time.process_time()
            read({name: LONG[name](count)})
            times.append(time.process_time() - began)
        return min(times)

    assert seconds(4_000) < 9 * max(seconds(1_000), 0.1)
