"""How long a report on a fleet takes: 10,000 generated snapshots of 40 environments, 5 outliers, 3 lost nodes.

    python bench/fleet.py [--nodes N] [--environments N] [--rounds N] [--json FILE]

Wall clock and peak memory of the whole program, from JSON Lines on disk to the HTML report. The goals are 20 seconds
and 500 MB for the default size; the table shows how both grow with nodes and with different environments.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path

from _harness import DOCTOR, arguments, settings, write_json

GOAL_SECONDS, GOAL_BYTES = 20.0, 500 * 10**6
LEAST = 200  # nodes: five outliers are no few among less
TORCHES = ("2.5.1", "2.6.0", "2.7.1", "2.8.0", "2.9.1")
DRIVERS = ("535.216.01", "550.90.07", "570.124.06", "580.95.05")
GPUS = (("NVIDIA H100 80GB HBM3", "9.0"), ("NVIDIA A100-SXM4-80GB", "8.0"))
WORKLOAD = ("workload.framework=transformers", "workload.dtype=bfloat16", "workload.head_dim_qk=128",
            "workload.mask=causal", "workload.training=true")  # fmt: skip


def main() -> int:
    """Measure, print a table, and return 1 if a goal is missed."""
    parser = arguments(__doc__, nodes=10_000, environments=40)
    options = parser.parse_args()
    if options.nodes < LEAST:
        parser.error(f"--nodes: at least {LEAST}, of which five can stand out")
    sizes = [(max(options.nodes // 10, LEAST), options.environments), (options.nodes, options.environments // 10 or 1),
             (options.nodes, options.environments)]  # fmt: skip
    rows = []
    for nodes, environments in sizes:
        with tempfile.TemporaryDirectory(prefix="attn-doctor-fleet-") as folder:
            rows.append(measure(Path(folder), nodes, environments))
    print(f"{'nodes':>7}{'environments':>14}{'input':>10}{'seconds':>10}{'peak memory':>13}{'outliers':>10}{'lost':>6}")
    for row in rows:
        print(f"{row['nodes']:>7}{row['environments']:>14}{row['input_bytes'] / 1e6:>7.0f} MB{row['seconds']:>10.1f}"
              f"{row['peak_bytes'] / 1e6:>10.0f} MB{row['outliers']:>10}{row['lost']:>6}")  # fmt: skip
    last = rows[-1]
    held = last["seconds"] <= GOAL_SECONDS and last["peak_bytes"] <= GOAL_BYTES
    print(f"goal: {GOAL_SECONDS:g} s and {GOAL_BYTES / 1e6:g} MB; {'held' if held else 'missed'}")
    write_json(options.json, rows)
    return 0 if held else 1


def measure(work: Path, nodes: int, environments: int) -> dict[str, float]:
    """Return time, memory and what was found for one size."""
    source = work / "nodes.jsonl"
    names = write_fleet(source, nodes, environments)
    (work / "expected.txt").write_text("\n".join(names) + "\n")
    command = [*DOCTOR, "fleet", "--snapshots", str(source), "--expect", str(work / "expected.txt"), "--fail-on",
               "never", "--format", f"json={work / 'report.json'}", "--format",
               f"html={work / 'report.html'}"]  # fmt: skip
    for setting in WORKLOAD:
        command += ["--set", setting]
    began = time.perf_counter()
    process = os.spawnve(os.P_NOWAIT, command[0], command, settings(work))
    _, status, usage = os.wait4(process, 0)
    seconds = time.perf_counter() - began
    if os.waitstatus_to_exitcode(status) != 0:
        sys.exit(f"{' '.join(command)} ended with status {os.waitstatus_to_exitcode(status)}")
    report = json.loads((work / "report.json").read_text())
    rare = {node for item in report["outliers"] if item["rare"] for node in item["nodes"]}
    wanted = {name for name in names if name.startswith("odd")}
    if not wanted <= rare or report["counts"]["lost"] != 3:
        sys.exit(f"outliers {sorted(wanted - rare)} were not named, or lost nodes: {report['counts']}")
    return {
        "nodes": nodes, "environments": environments, "input_bytes": source.stat().st_size,
        "seconds": round(seconds, 2),
        "peak_bytes": usage.ru_maxrss * 1024, "outliers": len(wanted), "lost": report["counts"]["lost"],
        "groups": len(report["groups"]),
    }  # fmt: skip


def write_fleet(path: Path, nodes: int, environments: int) -> list[str]:
    """Write the snapshots of a fleet; return the names of all nodes, lost ones included."""
    rng = random.Random(7)
    kinds = [environment(number, rng) for number in range(environments)]
    names = []
    with path.open("w") as file:
        for number in range(nodes):
            odd = number % max(1, nodes // 5) == 3 and number // max(1, nodes // 5) < 5
            name = f"{'odd' if odd else 'gpu'}-{number:05d}"
            facts = dict(kinds[number % environments])
            if odd:
                facts["cudnn.version"] = {"value": "9.1.1", "source": "libcudnn.so.9"}
            facts["env.CUDA_VISIBLE_DEVICES"] = {"value": str(number % 8), "source": "environment"}
            names.append(name)
            record = {"node": name, "tool": "attn-doctor", "snapshot": {"schema": 1, "facts": facts}}
            file.write(json.dumps(record) + "\n")
    return [*names, "lost-1", "lost-2", "lost-3"]


def environment(number: int, rng: random.Random) -> dict[str, dict[str, object]]:
    """Return the facts of one environment in their long form, 300 packages included."""
    gpu, sm = GPUS[number % 2]
    facts: dict[str, object] = {
        "torch.version": TORCHES[number % len(TORCHES)], "driver.version": DRIVERS[number % len(DRIVERS)],
        "gpu.name": gpu, "gpu.sm": sm, "gpu.count": 8, "cudnn.version": "9.10.2", "flash-attn.version": "2.7.4.post1",
        "python.version": "3.11.7", "platform.system": "Linux", "platform.machine": "x86_64",
        "distributions.complete": True, "transformers.version": f"4.5{number % 8}.0",
    }  # fmt: skip
    facts.update(
        {f"package-{index}.version": f"1.{rng.randrange(3) if index == number else 0}.0" for index in range(300)}
    )
    facts["package-999.version"] = f"1.{number}.0"
    return {key: {"value": value, "source": f"~/venv/lib/site-packages/{key}"} for key, value in facts.items()}


if __name__ == "__main__":
    sys.exit(main())
