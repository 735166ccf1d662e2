"""The text that benchmarks.gpu prints of its results."""


def number(value, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def table(header: list[str], rows: list[list[str]]) -> str:
    """Columns of equal width, the first one to the left."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = []
    for row in (header, *rows):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def of_roofs(row: dict) -> str:
    versions = [f"{name} {version}" for name, version in row.get("versions", {}).items()]
    lines = [", ".join([row.get("name", "a device without a name"), *versions])]
    if "copy_gb_s" in row:
        lines.append(f"copy on the device: {number(row['copy_gb_s'])} GB/s, read and written")
    if "upload_gb_s" in row:
        lines.append(f"upload from pinned memory: {number(row['upload_gb_s'])} GB/s")
    if "gemm_gflops" in row:
        size = row["gemm_size"]
        lines.append(f"product of float32 (no TF32), {size} x {size} x {size}: {number(row['gemm_gflops'])} GFLOP/s")
    if "launch_us" in row:
        lines.append(
            f"launch of an empty kernel: {row['launch_us']} us by the driver, {row['launch_cupy_us']} by CuPy, "
            f"{row['launch_in_graph_us']} within a CUDA graph"
        )
    lines += [f"not measured: {why}" for why in row.get("failed", [])]
    lines += [f"not measured: {row['error']}"] if "error" in row else []
    if "products" in row:
        header = ["products of the models, one after another", "m", "n", "k", "us", "GFLOP/s"]
        cells = [
            [each["what"], *(str(each[size]) for size in "mnk"), number(each["us"], 2), number(each["gflops"])]
            for each in row["products"]
        ]
        lines += ["", table(header, cells)]
    return "\n".join(lines)


def of_rate(row: dict, side: str) -> str:
    rates = row.get(f"{side}_per_s")
    return "-" if rates is None else number(rates["median"])


def share_of_roof(row: dict, side: str, roof: float | None) -> str:
    """Products on real tokens a second, of what a large product reaches."""
    if not roof or f"{side}_per_s" not in row:
        return "-"
    flops = row["products_gflop_per_step"] * row[f"{side}_per_s"]["median"] / row["batch"]
    return f"{100 * flops / roof:.2f} %"


def of_check(row: dict) -> str:
    check = row.get("check")
    if check is None:
        return "-"
    numbers = f"{check['relative']:.0e} {check['gradient']:.0e}"
    return numbers if check["same"] else f"DIFFERS {numbers}"


def of_all(results: dict) -> str:
    """Two tables of the tasks, and what went wrong."""
    roof = results["roofs"].get("gemm_gflops")
    rows = results["tasks"]
    speeds, costs, notes = [], [], []
    for task, row in rows.items():
        ratio = row.get("ratio")
        speeds.append([
            task, str(row.get("batch", "-")), of_rate(row, "lazynet"), of_rate(row, "torch"),
            "-" if ratio is None else f"{ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})",
            number(row.get("products_gflop_per_step"), 3), share_of_roof(row, "lazynet", roof),
            share_of_roof(row, "torch", roof), of_check(row),
        ])  # fmt: skip
        uploaded = row.get("uploaded_bytes_per_step")
        host = row.get("host_ms", {})
        costs.append([
            task, number(row.get("nodes_per_step"), 0), number(row.get("kernels_per_step"), 0),
            number(row.get("launches_per_step"), 0), number(row.get("replays_per_step")),
            number(None if uploaded is None else uploaded / 1e3), number(row.get("step_ms"), 2),
            *(number(host.get(part), 2) for part in ("build", "schedule", "plan", "forward", "backward", "update")),
            f"{number(row.get('lazynet_memory_mb'), 0)} / {number(row.get('torch_memory_mb'), 0)}",
            f"{row.get('rounds', 0)} x {row.get('steps_per_round', 0)}",
        ])  # fmt: skip
        if "torch" in row:
            notes.append(f"{task}: PyTorch {row['torch']}")
        if not row.get("check", {}).get("same", True):
            check = row["check"]
            notes.append(
                f"{task}: loss {check['lazynet_loss']} and PyTorch's {check['torch_loss']} differ, or the gradients of "
                f"{check['gradient_of']}"
            )
        if "error" in row:
            notes.append(f"{task}: {row['error']}")
    corpora = {row.get("data") for row in rows.values()} - {None}
    what = "the corpora" if corpora == {"corpus"} else "random data of the corpora's lengths and shapes"
    first = ["task", "minibatch", "LazyNet/s", "PyTorch/s", "ratio (range)", "GFLOP/step"]
    second = ["LazyNet, a step", "nodes", "kernels", "launches", "replays", "KB up", "ms"]
    second += ["build", "schedule", "plan", "forward", "backward", "update"]
    return "\n".join([
        "",
        f"Training on {what}: examples a second, medians of rounds in turn.",
        "Of the roof: products of real tokens against the large product above. Check: relative differences of the loss and",
        "of the gradients of one minibatch.",
        "",
        table([*first, "of the roof", "PyTorch", "check"], speeds),
        "",
        "Where LazyNet's host spends a step (ms; on a GPU forward and backward put work into its queue), MB on the GPU.",
        "",
        table([*second, "MB / PyTorch's", "rounds x steps"], costs),
        "",
        *notes,
    ])  # fmt: skip
