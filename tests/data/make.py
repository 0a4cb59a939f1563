#!/usr/bin/env python3
"""Makes the golden recordings of this folder, and what they are expected to say.

  python tests/data/make.py              the recordings and the expected JSON
  python tests/data/make.py --expected   the JSON only, from the recordings that are here

Needs the Python package, `testing` and cgdebug-cli of one build on PYTHONPATH and PATH. README.md
says when.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import tempfile

import numpy
import recording_writer

from cgdebug import _recording

HERE = pathlib.Path(__file__).resolve().parent
SECOND_NS = 1_000_000_000
START_NS = 1_700_000_000 * SECOND_NS
# MarkKind in daemon/core/recording/types.h
SESSION_ENDED, SESSION_DIED, SLOT_CLOSED, NOTE, FIRST_NAN, FIRST_INF, FIRST_MISMATCH = range(3, 10)
# Questions that every recording answers with --json; the path comes after the first word.
QUESTIONS = {"info": [], "stats": [], "probes": [], "check": []}
NAN, INF = float("nan"), float("inf")


class Golden:
    """One recording with fixed times and uuids."""

    def __init__(self, folder, name):
        self.path = folder / f"{name}.cgrec"
        self.writer = recording_writer.Writer(str(self.path))
        self._sessions = 0

    def session(self, label, rank=-1):
        self._sessions += 1
        return self.writer.add_session(f"{self._sessions:032x}", label, rank)

    def add(self, slot, replay, values, **options):
        """One snapshot; times follow from the replay."""
        options.setdefault("step", 100 + replay)
        time_ns = START_NS + replay * SECOND_NS
        self.writer.append(
            slot,
            replay,
            numpy.ascontiguousarray(values),
            timestamp_ns=time_ns,
            serial=options.pop("serial", time_ns),
            **options,
        )


def dtypes(folder):
    """Each dtype in two replays, with what is special about it: NaN, infinities, subnormals, ends."""
    golden = Golden(folder, "dtypes")
    session = golden.session("dtypes")
    halves = {
        "float16": ([0x0000, 0x3C00, 0xBC00, 0x7BFF, 0x0001, 0x8000], 0x7E00, 0x7C00),
        "bfloat16": ([0x0000, 0x3F80, 0xBF80, 0x7F7F, 0x0001, 0x8000], 0x7FC0, 0xFF80),
    }
    bytes_ = {
        "float8_e4m3fn": ([0x00, 0x38, 0xB8, 0x7E, 0x01, 0x80], 0x7F, 0xFF),
        "float8_e5m2": ([0x00, 0x3C, 0xBC, 0x7B, 0x01, 0x80], 0x7E, 0x7C),
        "float8_e4m3fnuz": ([0x00, 0x40, 0xC0, 0x7F, 0x01, 0xFF], 0x80, 0x80),
        "float8_e5m2fnuz": ([0x00, 0x40, 0xC0, 0x7F, 0x01, 0xFF], 0x80, 0x80),
        "float8_e8m0fnu": ([0x00, 0x7F, 0x80, 0xFE, 0x01, 0x7E], 0xFF, 0xFF),
        "float4_e2m1fn_x2": ([0x00, 0x21, 0x43, 0x65, 0x87, 0xFF], 0x10, 0x9A),  # has neither
    }
    values = {"bool": numpy.array([[True, False, True], [False, False, True]])}
    for name in ("uint8", "uint16", "int8", "int16", "int32", "int64"):
        ends = numpy.iinfo(name)
        values[name] = numpy.array([[ends.min, 0, 1], [2, 3, ends.max]], name)
    for name in ("float32", "float64"):
        ends = numpy.finfo(name)
        values[name] = numpy.array([[0, 1, -1], [ends.max, ends.smallest_subnormal, -0.0]], name)
    for table, raw in ((halves, "uint16"), (bytes_, "uint8")):
        for name, (bits, _, _) in table.items():
            values[name] = numpy.array(bits, raw).reshape(2, 3)
    for name, tensor in values.items():
        slot = golden.writer.add_slot(session, f"as.{name}", name, [2, 3])
        golden.add(slot, 1, tensor)
        second = tensor.copy()
        if name in ("float32", "float64"):
            second[0] = [NAN, INF, -INF]
        elif name in halves or name in bytes_:
            _, nan, inf = {**halves, **bytes_}[name]
            second[0] = [nan, inf, tensor[0, 1]]
        golden.add(slot, 2, second)
    golden.writer.close()


def statistics(folder):
    """Statistics without values, with and without the hash; tensors without elements, with one."""
    golden = Golden(folder, "statistics")
    session = golden.session("statistics")
    numbers = numpy.arange(24, dtype="float32").reshape(2, 3, 4)
    hashed = golden.writer.add_slot(session, "hashed", "float32", [2, 3, 4])
    plain = golden.writer.add_slot(session, "without.hash", "float32", [2, 3, 4])
    nothing = golden.writer.add_slot(session, "empty", "float32", [0, 4])
    scalar = golden.writer.add_slot(session, "scalar", "float64", [])
    both = golden.writer.add_slot(session, "both", "float32", [4])
    for replay in (1, 2, 3):
        golden.add(hashed, replay, numbers * replay, stats_only=True)
        golden.add(plain, replay, numbers - replay, stats_only=True, xor_hash=False)
        golden.add(nothing, replay, numpy.zeros((0, 4), "float32"))
        golden.add(scalar, replay, numpy.array(0.5 * replay))
        golden.add(both, replay, numpy.full(4, NAN if replay == 2 else replay, "float32"),
                   stats_only=replay == 3)  # fmt: skip
    golden.writer.close()


def losses(folder):
    """Losses at the beginning, inside and at the end, findings that outlive them, a job that died."""
    golden = Golden(folder, "losses")
    session = golden.session("losses")
    whole = golden.writer.add_slot(session, "whole", "float32", [4])
    gaps = golden.writer.add_slot(session, "with.gaps", "float32", [4])
    gone = golden.writer.add_slot(session, "all.lost", "float32", [4])
    golden.writer.lose(gaps, 2, 0)
    for replay in range(1, 9):
        golden.add(whole, replay, numpy.full(4, replay, "float32"))
        if replay in (3, 4, 7):
            golden.add(gaps, replay, numpy.full(4, replay / 8, "float32"))
        elif replay == 5:
            golden.writer.lose(gaps, 2, 4)
    golden.writer.lose(gaps, 1, 7)
    golden.writer.lose(gone, 8, 0)
    golden.writer.mark(FIRST_NAN, gaps, replay=6, count=3)
    golden.writer.mark(FIRST_INF, gaps, replay=8, count=1)
    golden.writer.mark(FIRST_MISMATCH, gone, replay=2, text="Tensor-likes are not close!")
    for slot in (whole, gaps, gone):
        golden.writer.mark(SLOT_CLOSED, slot, replay=8)
    golden.writer.mark(SESSION_DIED)
    golden.writer.mark(NOTE, text="a note")
    golden.writer.close()


def graphs(folder):
    """Two ranks; graphs with labels and without, calls of one probe, shapes of eager calls."""
    golden = Golden(folder, "graphs")
    for rank in (0, 1):
        session = golden.session(f"graphs/r{rank}", rank)
        for graph_id, label, batch in ((3, "bs=2", 2), (5, "bs=4", 4), (8, "", 4)):
            calls = [
                golden.writer.add_slot(session, "attn", "float32", [batch, 3], graph_id=graph_id,
                                       invocation=call, device="cuda:0", graph_label=label)
                for call in (0, 1)
            ]  # fmt: skip
            out = golden.writer.add_slot(
                session, "out", "bfloat16", [batch], graph_id=graph_id, graph_label=label
            )
            for replay in (1, 2):
                serial = START_NS + replay * SECOND_NS + graph_id * 1000
                for call, slot in enumerate(calls):
                    tensor = numpy.full((batch, 3), rank + 10 * graph_id + call, "float32")
                    golden.add(slot, replay, tensor, serial=serial)
                golden.add(out, replay, numpy.full(batch, 0x3F80 + replay, "uint16"), serial=serial)
        for shape in ([2], [3, 2]):
            eager = golden.writer.add_slot(session, "eager", "int32", shape, graph_id=0)
            golden.add(eager, 1, numpy.full(shape, rank, "int32"))
    golden.writer.mark(SESSION_ENDED)
    golden.writer.close()


def damaged(folder):
    """Cut off in the middle of its last snapshot, as by a crash of the machine, with a flipped bit in
    the values of an earlier one. One payload is large enough to begin at a page."""
    golden = Golden(folder, "damaged")
    session = golden.session("damaged")
    small = golden.writer.add_slot(session, "small", "float32", [64])
    large = golden.writer.add_slot(session, "large", "uint8", [256 << 10])
    for replay in (1, 2, 3, 4):
        golden.add(small, replay, numpy.full(64, replay, "float32"))
        if replay == 2:
            tensor = numpy.zeros(256 << 10, "uint8")
            tensor[-1] = 7
            golden.add(large, 1, tensor)
    golden.writer.commit()
    segment = golden.path / "segment-000001.cgd"
    data = bytearray(segment.read_bytes())  # as it is now: without an end
    golden.writer.close()
    second, fourth = (numpy.full(64, value, "float32").tobytes() for value in (2, 4))
    data[data.index(second) + 9] ^= 0x10
    segment.write_bytes(data[: data.index(fourth) + 100])


RECORDINGS = [dtypes, statistics, losses, graphs, damaged]


def contents(path):
    """What the reader finds, slot by slot; bytes of small tensors as hex."""
    reader = _recording.Reader(str(path))
    slots = []
    for index, slot in enumerate(reader.slots()):
        snapshots = {}
        for replay, _ in reader.keys(index):
            try:
                values = bytes(reader.values(index, replay))
                snapshots[replay] = values.hex() if len(values) <= 256 else len(values)
            except Exception as error:  # statistics alone, or damage
                snapshots[replay] = None if "statistics" in str(error) else "damaged"
        which = {name: slot[name] for name in ("probe", "session", "order", "dtype")}
        slots.append({**which, "shape": list(slot["shape"]), "snapshots": snapshots})
    return slots


def ask(path):
    """What cgdebug-cli says, run beside the recording, so that no path of this machine is in it."""
    answers = {}
    for word, options in QUESTIONS.items():
        done = subprocess.run(
            ["cgdebug-cli", "--no-spawn", "--json", word, path.name, *options],
            cwd=path.parent,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        answers[word] = {"exit": done.returncode, "stdout": json.loads(done.stdout)}
    return answers


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--expected", action="store_true", help="keep the recordings")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for make in RECORDINGS:
            made = folder / f"{make.__name__}.cgrec"
            stored = HERE / made.name
            if options.expected:
                shutil.copytree(stored, made)
            else:
                make(folder)
                shutil.rmtree(stored, ignore_errors=True)
                stored.mkdir()
                for segment in made.glob("segment-*.cgd"):
                    shutil.copy(segment, stored)
                for other in set(made.iterdir()) - set(made.glob("segment-*.cgd")):
                    other.unlink()
            expected = {"recording": contents(made), **ask(made)}
            text = json.dumps(expected, indent=1, sort_keys=True, ensure_ascii=False)
            (HERE / f"{make.__name__}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
