"""Companions of torch from an index of PyTorch."""

from doctor.diagnosis import pipeline as session
from doctor.diagnosis.request import Request


def test_the_index_of_an_older_cuda_has_the_torchaudio_of_its_torch(write):
    line = "RUN pip install torch==2.2.2 torchvision torchaudio"
    cu121 = f"{line} --index-url https://download.pytorch.org/whl/cu121"
    found = {}
    for name, text in (("cu121", cu121), ("pypi", line)):
        path = write(f"{name}.Dockerfile", f"FROM python:3.11\n{text}\n")
        report = session.diagnose(Request(declared=(str(path),), run=False))
        found[name] = {finding.rule for finding in report.findings}
    assert "TA002" not in found["cu121"]
    assert "TA002" in found["pypi"]
