#!/usr/bin/env python3
"""How long questions about a job take that has as many graphs as a serving engine: 61 of 2,000 nodes.

Each graph is captured with an op log and replayed. Then, each three times, of which the last is said:
`cgdebug.audit()` in the process, and `cgdebug-cli audit`, `why`, `check`, `ops` and `where` beside it.

Needs a GPU, torch and `cgdebug-cli` on PATH: PYTHONPATH=BUILD/python python3 tools/bench/many_graphs.py
"""

import os

os.environ.pop("CGDEBUG", None)  # a daemon answers
import subprocess
import time

import graph_bench as bench
import torch

os.environ.pop("CGDEBUG", None)  # which graph_bench sets

import cgdebug

WIDTH, PAIRS = 64, 50  # of linear layers and activations, whose parameters the graphs read
WORDS = ("audit", "why", "check", "ops", "where")


def captured(model, nodes, rows):
    """A graph of that many nodes."""
    x = torch.randn(rows, WIDTH, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with cgdebug.debug_mode(model), torch.cuda.graph(graph):
        y = x
        for _ in range(max(nodes // (2 * PAIRS), 1)):
            y = model(y)
    return graph


def timed(function):
    for _ in range(3):
        began = time.perf_counter()
        result = function()
        took = time.perf_counter() - began
    return took, result


def said_by(word):
    command = ["cgdebug-cli", "-q", word]
    return timed(lambda: subprocess.run(command, capture_output=True, text=True))


def main():
    parser = bench.parser(__doc__)
    parser.add_argument("--graphs", type=int, default=61)
    parser.add_argument("--nodes", type=int, default=2000)
    options = parser.parse_args()
    layers = [one for _ in range(PAIRS) for one in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh())]
    model = torch.nn.Sequential(*layers).cuda()
    with torch.no_grad():
        model(torch.randn(1, WIDTH, device="cuda"))
        graphs = [captured(model, options.nodes, 1 + n) for n in range(options.graphs)]
        for graph in graphs:
            for _ in range(3):
                graph.replay()
    torch.cuda.synchronize()
    figures = {"machine": bench.machine()}
    figures["cgdebug.audit()"], audit = timed(cgdebug.audit)
    rows = [
        ["`cgdebug.audit()`", f"{figures['cgdebug.audit()']:.2f}", "ok" if audit.ok else "not ok"]
    ]
    for word in WORDS:
        figures[word], done = said_by(word)
        said = (done.stdout + done.stderr).strip().splitlines()
        rows.append(
            [
                f"`{word}`",
                f"{figures[word]:.2f}",
                f"{done.returncode}: {said[0] if said else ''}"[:90],
            ]
        )
    print(f"{options.graphs} graphs of {options.nodes} nodes and more\n")
    print(bench.table(["", "s", "exit code and first line"], rows))
    bench.report(figures, options.json)


if __name__ == "__main__":
    main()
