"""One table and one JSON file of what tests/gpu/check.sh ran.

usage: report.py FOLDER_OF_OUTPUTS JSON DEVICE
"""
import json
import pathlib
import sys


def objects(path):
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]


def main():
    folder, target, device = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
    steps = {path.stem: int(path.read_text()) for path in sorted(folder.glob("*.status"))}
    ops, bench, torch = (objects(folder / name) for name in ("ops", "bench", "torch"))
    bandwidth = next((line["bandwidth"] for line in torch if "bandwidth" in line), None)
    peers = {(line["op"], line["rows"]): line["seconds"] for line in torch if "op" in line}
    print(f"device: {device}")
    for step, status in steps.items():
        print(f"  {step:24} {'passed' if status == 0 else 'FAILED'}")
    print("| op | rows | error of allowed | us | GB/s | of bandwidth | PyTorch, us |\n|---|---|---|---|---|---|---|")
    rows = []
    for line in bench or ops:
        seconds, peer = line["seconds"], peers.get((line["op"], line["rows"]))
        speed = line["bytes"] / seconds if seconds else None
        row = {"op": line["op"], "rows": line["rows"], "error_of_allowed": None if bench else line["error_of_allowed"],
               "seconds": seconds or None, "bytes_per_second": speed,
               "of_bandwidth": speed / bandwidth if speed and bandwidth else None, "torch_seconds": peer}
        rows.append(row)
        show = lambda value, factor=1.0: "" if value is None else f"{value * factor:.3g}"
        print(f"| {row['op']} | {row['rows']} | {show(row['error_of_allowed'])} | {show(row['seconds'], 1e6)} | "
              f"{show(speed, 1e-9)} | {show(row['of_bandwidth'])} | {show(peer, 1e6)} |")
    target.write_text(json.dumps({"device": device, "steps": steps, "ops": ops, "rows": rows}, indent=1) + "\n")
    return 0 if steps and all(status == 0 for status in steps.values()) and ops else 1


if __name__ == "__main__":
    sys.exit(main())
