"""How fast logs are decoded, beside grep on the same file, in the same run.

    python benchmarks/decode.py [--megabytes 1000] [--rounds 5] [--folder /tmp] [--quick]

Makes a log with a share of fault lines of every kind, and a ledger of what it wrote; a speed counts only if all of the
ledger was decoded. Compares, on one core and with the file in the page cache, the median of the rounds of

- `grep -c -F "NVRM: Xid"`: one literal;
- `grep -c -F -f`: as many literals as the scanner looks for;
- `zcat | grep -c`: for the same log in gzip, each with both cores;

with `medevac decode --json`, its start included; and measures memory, events a second where every fifth line is a
fault, and several files at once.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple

from medevac.decode.scanner import ANCHORS

NOISE = (
    "systemd[1]: Started Session {n} of user root.",
    "sshd[{n}]: Accepted publickey for ops from 10.2.3.4 port 40022 ssh2: ED25519 SHA256:abcdefgh",
    "CRON[{n}]: (root) CMD (command -v debian-sa1 > /dev/null && debian-sa1 1 1)",
    "kernel: [{n}.123456] IPv6: ADDRCONF(NETDEV_CHANGE): cali1234: becomes ready",
    'kubelet[{n}]: I0301 10:00:00.123456 2211 reconciler.go:224] "operationExecutor.VerifyControllerAttachedVolume"',
    "slurmd[{n}]: debug:  _rpc_terminate_job: uid = 64030 JobId={n}",
    'containerd[{n}]: time="2026-03-01T10:00:00Z" level=info msg="shim disconnected" id={n}',
    'kernel: [{n}.500000] audit: type=1400 apparmor="STATUS" operation="profile_load" name="x"',
    "dhclient[{n}]: DHCPREQUEST for 10.2.3.{m} on eno1 to 10.2.0.1 port 67",
)
# "kind: message", each one event.
FAULTS = """\
xid: NVRM: Xid (PCI:0000:{b:02x}:00): 31, pid={n}, name=python3, Ch 00000010, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7fc1_23456000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ
xid: NVRM: Xid (PCI:0000:{b:02x}:00): 13, pid={n}, name=python3, Graphics SM Warp Exception on (GPC 9, TPC 1, SM 1): Out Of Range Address
xid: NVRM: Xid (PCI:0000:{b:02x}:00): 45, pid={n}, name=python3, Ch 0000000c
xid: NVRM: Xid (PCI:0000:{b:02x}:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
xid: NVRM: Xid (PCI:0000:{b:02x}:00): 94, pid={n}, name=python3, Contained: SM (0x1). RST: No, D-RST: No
xid: NVRM: Xid (PCI:0000:{b:02x}:00): 63, pid={n}, name=python3, Row Remapper: New row (0x0000000018f31d80) marked for remapping, reset gpu to activate.
xid: NVRM: Xid (PCI:0000:{b:02x}:00): 145, pid={n}, name=python3, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001 0x00000000 0x00100000 0x00000004)
xid: NVRM: Xid (PCI:0000:{b:02x}:00): 119, pid={n}, name=nvidia-smi, Timeout after 6s of waiting for RPC response from GPU0 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20809004 0x608).
xid: NVRM: Xid (PCI:0000:{b:02x}:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)
sxid: nvidia-nvswitch2: SXid (PCI:0000:{b:02x}:00.0): 12028, Non-fatal, Link 61 egress non-posted PRIV error (First)
fell_off: NVRM: GPU 0000:{b:02x}:00.0: GPU has fallen off the bus.
nvrm_info: NVRM: GPU at PCI:0000:{b:02x}:00: GPU-00000000-0000-0000-0000-0000000000{b:02x}
nvrm_other: NVRM: GPU 0000:{b:02x}:00.0: RmInitAdapter failed! (0x62:0x65:1859)
aer: pcieport 0000:{b:02x}:01.0: AER: Corrected error received: 0000:{b:02x}:00.0
pcie_bw: pci 0000:{b:02x}:00.0: 252.048 Gb/s available PCIe bandwidth, limited by 16.0 GT/s PCIe x16 link at 0000:01:00.0 (capable of 504.112 Gb/s with 32.0 GT/s PCIe x16 link)
ib_link: mlx5_core 0000:{b:02x}:00.0 mlx5_5: Port: 1 Link DOWN
mlx5: mlx5_core 0000:{b:02x}:00.0: poll_health:788:(pid 0): device's health compromised - reached miss count
eth_link: ixgbe 0000:{b:02x}:00.0 eth0: NIC Link is Down
efa: infiniband rdmap0s6: Wait for completion (polling) timeout
oom: Out of memory: Killed process {n} (python3) total-vm:33558652kB, anon-rss:920kB, file-rss:452kB
oom_start: python3 invoked oom-killer: gfp_mask=0x280da, order=0, oom_score_adj=0
disk: nvme nvme4: Disabling device after reset failure: -19
disk: XFS (md127): log I/O error -5
disk: EXT4-fs (md0): Remounting filesystem read-only
mce: mce: [Hardware Error]: event severity: fatal
mce: EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1 slot:0)
thermal: CPU1: Core temperature above threshold, cpu clock throttled (total events = 1)
hung_task: INFO: task python3:{n} blocked for more than 120 seconds.
soft_lockup: watchdog: BUG: soft lockup - CPU#0 stuck for 27s! [cuda-EvtHandlr:{n}]
panic: Kernel panic - not syncing: hung_task: blocked tasks
nccl_segfault: pt_main_thread[{n}]: segfault at 7f797fe00000 ip 00007f7c7ac69996 sp 00007f7c12fd7c30 error 4 in libnccl.so.2[7f7c7ac00000+d3d3000]
peermem: nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing
nfs: nfs: server nfs-prod-01.example.com not responding, still trying
amdgpu: amdgpu 0000:{b:02x}:00.0: amdgpu: 2 uncorrectable hardware errors detected in umc block
""".splitlines()  # noqa: E501 - one line of a log is one line here

Ledger = collections.Counter[str]


def make_log(path: Path, size: int, share: float) -> Ledger:
    """Write about `size` bytes of a syslog, `share` of its lines faults; gives how many of each kind."""
    rng = random.Random(20260301)
    ledger: Ledger = collections.Counter()
    written = line = 0
    with path.open("wb") as out:
        while written < size:
            lines = []
            for _ in range(2000):
                line += 1
                clock = f"{line // 40_000 % 24:02d}:{line // 600 % 60:02d}:{line // 10 % 60:02d}"
                head = f"Mar {1 + line // 4_000_000:2d} {clock} node{line % 50} "
                if rng.random() < share:
                    kind, _, text = FAULTS[rng.randrange(len(FAULTS))].partition(": ")
                    ledger[kind] += 1
                    lines.append(f"{head}kernel: [{line}.123456] {text.format(n=line, b=line % 200)}")
                else:
                    lines.append(head + NOISE[rng.randrange(len(NOISE))].format(n=line, m=line % 250))
            block = ("\n".join(lines) + "\n").encode()
            out.write(block)
            written += len(block)
    return ledger


MEDEVAC = (sys.executable, "-m", "medevac.cli.main", "decode", "--json")
DECODE = """
import collections, json, sys
from medevac.decode.files import Options, decode_files
events = decode_files(sys.argv[2:], options=Options(jobs=int(sys.argv[1])))
print(json.dumps(collections.Counter(event.kind for event in events)))
"""


class Run(NamedTuple):
    """Seconds of wall and of processor time of a command, its start included; resident MiB at most; what it wrote."""

    wall: float
    cpu: float
    peak: float
    said: IO[bytes]


def timed(command: list[str]) -> Run:
    """Run it, its output into a pipe, and from there to disk: a child's peak is at least this process's own."""
    said = tempfile.TemporaryFile()  # noqa: SIM115 - read by check
    begun = time.perf_counter()
    process = subprocess.Popen(command, env={**os.environ, "LC_ALL": "C"}, stdout=subprocess.PIPE)
    assert process.stdout is not None
    shutil.copyfileobj(process.stdout, said)
    _, _, usage = os.wait4(process.pid, 0)
    process.returncode = 0
    process.stdout.close()
    return Run(time.perf_counter() - begun, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, said)


def one_core(command: list[str]) -> list[str]:
    return ["taskset", "-c", "0", *command]


def events_of(paths: list[Path], jobs: int = 1) -> list[str]:
    """The command that decodes and only counts: the library without the catalog, incidents and output."""
    return [sys.executable, "-c", DECODE, str(jobs), *map(str, paths)]


def medians(rounds: int, runs: dict[str, Callable[[], Run]]) -> dict[str, Run]:
    """The median of each, the runs taken in turn so that a busy machine slows all of them alike."""
    done: dict[str, list[Run]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            done[name].append(run())
    return {name: median(got) for name, got in done.items()}


def median(runs: list[Run]) -> Run:
    wall, cpu, peak = (statistics.median(column) for column in zip(*(run[:3] for run in runs), strict=True))
    return Run(wall, cpu, peak, runs[-1].said)


def check(said: IO[bytes], ledger: Ledger, copies: int = 1) -> None:
    """All of the ledger, and nothing else: in counts of DECODE, or in the lines of the command."""
    found: Ledger = collections.Counter()
    said.seek(0)
    for line in said:
        record = json.loads(line)
        found.update([record["kind"]] if "kind" in record else record)
    wanted = {kind: count * copies for kind, count in ledger.items()}
    assert found == wanted, f"not all was decoded: {found} of {wanted}"


Row = dict[str, Any]


def beside(name: str, value: float, unit: str, reference: str, other: float, ratio: float) -> Row:
    """One measured thing beside what it is compared with."""
    row: Row = {"name": name, "value": round(value, 2), "unit": unit}
    return row | {"reference": reference, "reference_value": round(other, 2), "ratio": round(ratio, 2)}


def sparse(folder: Path, size: int, rounds: int) -> Iterator[Row]:
    """One line of a thousand is a fault: speed beside grep, memory; then the same log packed, and two at once."""
    path = folder / "medevac-bench.log"
    ledger = make_log(path, size, 0.001)
    patterns = folder / "medevac-bench.patterns"
    patterns.write_bytes(b"\n".join(ANCHORS) + b"\n")
    subprocess.run(["cat", path], stdout=subprocess.DEVNULL, check=True)
    got = medians(
        rounds,
        {
            "decode": lambda: timed(one_core([*MEDEVAC, str(path)])),
            "grep": lambda: timed(one_core(["grep", "-c", "-F", "NVRM: Xid", str(path)])),
            "greps": lambda: timed(one_core(["grep", "-c", "-a", "-F", "-f", str(patterns), str(path)])),
        },
    )
    decode = got["decode"]
    check(decode.said, ledger)
    bytes_ = path.stat().st_size
    for name, what in (("grep", "grep -c -F, one literal"), ("greps", f"grep -c -F -f, {len(ANCHORS)} literals")):
        other = got[name]
        speeds = bytes_ / decode.wall / 1e9, bytes_ / other.wall / 1e9
        yield beside(f"decode_vs_{name}", speeds[0], "GB/s", what, speeds[1], other.wall / decode.wall)
        yield beside(f"decode_vs_{name}_cpu", decode.cpu, "s", what, other.cpu, other.cpu / decode.cpu)
    yield {"name": "decode_memory", "value": round(decode.peak), "unit": "MiB"}
    yield packed(folder, path, ledger, rounds)
    yield parallel(path, ledger, rounds)
    path.unlink()
    patterns.unlink()


def packed(folder: Path, path: Path, ledger: Ledger, rounds: int) -> Row:
    """The same log in gzip."""
    packed_path = folder / "medevac-bench.log.gz"
    with packed_path.open("wb") as out:
        subprocess.run(["gzip", "-c", "-6", path], stdout=out, check=True)
    zcat = ["bash", "-c", f"zcat {packed_path} | grep -c -F 'NVRM: Xid'"]
    got = medians(rounds, {"decode": lambda: timed([*MEDEVAC, str(packed_path)]), "zcat": lambda: timed(zcat)})
    check(got["decode"].said, ledger)
    packed_path.unlink()
    ours, theirs = got["decode"].wall, got["zcat"].wall
    return beside("decode_gz", ours, "s", "zcat | grep -c", theirs, theirs / ours)


def parallel(path: Path, ledger: Ledger, rounds: int) -> Row:
    """Two copies of the log, by one process and by two."""
    copies = [path.with_suffix(f".{n}") for n in range(2)]
    for copy in copies:
        copy.hardlink_to(path)

    def of(jobs: int) -> Callable[[], Run]:
        return lambda: timed(events_of(copies, jobs))

    got = medians(max(1, rounds // 2), {str(jobs): of(jobs) for jobs in (1, 2)})
    for jobs in ("1", "2"):
        check(got[jobs].said, ledger, copies=2)
    for copy in copies:
        copy.unlink()
    return beside("decode_two_files", got["2"].wall, "s", "one process", got["1"].wall, got["1"].wall / got["2"].wall)


def dense(folder: Path, size: int, rounds: int) -> Iterator[Row]:
    """Every fifth line is a fault: read only, and with incidents and JSON; and what the command's start takes of it."""
    path = folder / "medevac-bench-dense.log"
    ledger = make_log(path, size, 0.2)
    first = folder / "medevac-bench-first.log"
    with path.open("rb") as whole:
        first.write_bytes(whole.read(10_000).rpartition(b"\n")[0])
    got = medians(
        rounds,
        {
            "events": lambda: timed(one_core(events_of([path]))),
            "json": lambda: timed(one_core([*MEDEVAC, str(path)])),
            "start": lambda: timed(one_core([*MEDEVAC, str(first)])),
        },
    )
    for name in ("events", "json"):
        check(got[name].said, ledger)
        rate = sum(ledger.values()) / got[name].wall
        yield beside(f"decode_{name}_per_s", rate, "events/s", "aim", 200_000, rate / 200_000)
    yield {"name": "decode_json_memory", "value": round(got["json"].peak), "unit": "MiB"}
    yield {"name": "decode_start", "value": round(got["start"].wall, 2), "unit": "s"}
    path.unlink()
    first.unlink()


def main() -> None:
    """Print a row for each measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--quick", action="store_true", help="50 MB, one round: does it run, is all decoded")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    size, rounds = (50, 1) if chosen.quick else (chosen.megabytes, chosen.rounds)
    rows = chain(
        sparse(chosen.folder, size * 1_000_000, rounds), dense(chosen.folder, min(size, 200) * 1_000_000, rounds)
    )
    for row in rows:
        against = f" ({row['reference']}: {row['reference_value']}, ratio {row['ratio']})" if "ratio" in row else ""
        print(json.dumps(row) if chosen.json else f"{row['name']}: {row['value']} {row['unit']}{against}", flush=True)


if __name__ == "__main__":
    main()
