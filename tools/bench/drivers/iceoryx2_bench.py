#!/usr/bin/env python3
"""What ring_bench measures, through iceoryx2's own Python package: tools/bench/ring.py runs it.

    iceoryx2_bench.py BYTES SECONDS      prints one line of JSON

The figures of both sides include the interpreter's share: iceoryx2 has no other package that
installs without a Rust toolchain. Needs: pip install iceoryx2
"""

import ctypes
import json
import mmap
import os
import struct
import sys
import time

import iceoryx2

CAPACITY = 1024
BATCH = 64


def service(name, payload):
    node = iceoryx2.NodeBuilder.new().create(iceoryx2.ServiceType.Ipc)
    builder = node.service_builder(iceoryx2.ServiceName.new(name)).publish_subscribe(payload)
    builder = builder.enable_safe_overflow(False).subscriber_max_buffer_size(CAPACITY)
    return node, builder.open_or_create()


def read_all(name, payload, size, shared, report):
    os.sched_setaffinity(0, {1})
    node, made = service(name, payload)
    subscriber = made.subscriber_builder().buffer_size(CAPACITY).create()
    copy = ctypes.create_string_buffer(size)
    ages = []
    received = 0
    shared[16] = 1  # there
    while not shared[8]:
        sample = subscriber.receive()
        if sample is None:
            continue
        ctypes.memmove(copy, sample.payload(), size)
        sample.delete()
        (sent_ns,) = struct.unpack_from("=q", copy)
        if sent_ns:
            ages.append(time.perf_counter_ns() - sent_ns)
        received += 1
        struct.pack_into("=Q", shared, 0, received)
    ages.sort()
    os.write(report, json.dumps([ages[len(ages) // 2], ages[len(ages) * 99 // 100]]).encode())
    del node
    os._exit(0)


def run(size, seconds):
    payload = type("Message", (ctypes.Structure,), {"_fields_": [("bytes", ctypes.c_uint8 * size)]})
    name = f"cgdebug-bench-{os.getpid()}"
    shared = mmap.mmap(-1, 4096)
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        read_all(name, payload, size, shared, write_end)
    os.sched_setaffinity(0, {0})
    node, made = service(name, payload)
    publisher = made.publisher_builder().create()
    while not shared[16]:
        time.sleep(0.001)
    publisher.update_connections()
    message = payload()
    sent = 0

    def received():
        return struct.unpack_from("=Q", shared)[0]

    def write_one(stamp_ns):
        nonlocal sent
        while sent - received() >= CAPACITY - 8:
            pass
        struct.pack_into("=q", message, 0, stamp_ns)
        publisher.loan_uninit().write_payload(message).send()
        sent += 1

    write_one(0)
    while received() < sent:
        time.sleep(0.001)
    start = time.perf_counter()
    many = 0
    while time.perf_counter() - start < seconds / 2:
        for _ in range(BATCH):
            write_one(0)
        many += BATCH
    while received() < sent:
        pass
    took = time.perf_counter() - start
    latency_end = time.perf_counter() + seconds / 2
    due = time.perf_counter()
    while due < latency_end:
        while time.perf_counter() < due:
            pass
        write_one(time.perf_counter_ns())
        while received() < sent:
            pass
        due += 50e-6
    shared[8] = 1
    p50, p99 = json.loads(os.read(read_end, 4096))
    os.wait()
    del node
    rate = many / took
    return {
        "messages_per_s": round(rate),
        "gbs": round(rate * size / 1e9, 3),
        "p50_ns": p50,
        "p99_ns": p99,
    }


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]), float(sys.argv[2]))))
