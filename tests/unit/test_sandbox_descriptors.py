import subprocess
import sys

import pytest

_PROGRAM = """
import resource, sys
from dualtrack.sandbox.descriptors import raise_limit
soft, hard, sessions = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(raise_limit(sessions), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(
    ("soft", "hard", "sessions", "now"),
    [(256, 4096, 64, 1536), (256, 1000, 64, 1000), (2000, 4096, 64, 2000)],
    ids=["what sessions need", "no more than it may", "never less"],
)
def test_a_process_may_have_descriptors_for_its_sessions(soft: int, hard: int, sessions: int, now: int) -> None:
    arguments = [str(number) for number in (soft, hard, sessions)]
    done = subprocess.run([sys.executable, "-c", _PROGRAM, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(now), str(now)]
