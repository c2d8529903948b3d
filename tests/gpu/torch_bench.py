"""Times what PyTorch has for the shapes of op_check --bench, as lines of JSON; says so and prints none where it is not there."""
import json
import sys
import time

try:
    import torch
except ImportError:
    print("PyTorch is not installed", file=sys.stderr)
    sys.exit(0)
if not torch.cuda.is_available():
    print("PyTorch sees no CUDA device", file=sys.stderr)
    sys.exit(0)


def seconds(run, times=50):
    run()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(times):
        run()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / times


copied = torch.empty(1 << 28, dtype=torch.float32, device="cuda")
target = torch.empty_like(copied)
print(json.dumps({"bandwidth": 2 * copied.numel() * 4 / seconds(lambda: target.copy_(copied))}))
del copied, target
for name, dtype in (("F32", torch.float32), ("F16", torch.float16), ("BF16", torch.bfloat16)):
    weight = torch.randn(4096, 4096, device="cuda", dtype=dtype)
    for rows in (1, 16, 512):
        x = torch.randn(rows, 4096, device="cuda", dtype=dtype)
        print(json.dumps({"op": f"linear {name}", "rows": rows,
                          "seconds": seconds(lambda: torch.nn.functional.linear(x, weight))}))
for rows, length in ((1, 8192), (128, 2048)):
    q = torch.randn(1, 32, rows, 128, device="cuda", dtype=torch.float16)
    k = torch.randn(1, 8, length, 128, device="cuda", dtype=torch.float16)
    v = torch.randn_like(k)
    run = lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    print(json.dumps({"op": "attention f16", "rows": rows, "seconds": seconds(run)}))
