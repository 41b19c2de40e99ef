#!/bin/sh
# Ask a vLLM release which backend it takes for random jobs, and score our predictions against its answers.
# usage: ask_vllm.sh RELEASE PYTHON_WITH_TORCH OUR_PYTHON
set -eu
[ -n "$1" ] && [ -n "$2" ] || { echo "name a release and a Python with torch: make ask-vllm VLLM=0.33.0 ASK_PYTHON=python3" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$3" -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --abi abi3 --abi cp38 --abi cp312 \
    --platform manylinux1_x86_64 --platform manylinux2014_x86_64 --platform manylinux_2_28_x86_64 \
    --platform manylinux_2_31_x86_64 --platform manylinux_2_35_x86_64 -d "$work" "vllm==$1"
"$3" - "$work" <<'EOF'
import sys
import zipfile
from pathlib import Path

work = Path(sys.argv[1])
for wheel in work.glob("*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".py") or ".dist-info/" in name:
                archive.extract(name, work / "sources")
    wheel.unlink()
EOF
"$2" scripts/oracles/ask_vllm.py --sources "$work/sources" --random "${CASES:-200}" --machines "${MACHINES:-20}" \
    --output "$work/answers.jsonl"
"$3" scripts/oracles/score_vllm.py "$work/answers.jsonl" --candidates
