#include <fmt/format.h>

#include "client/cli/command.h"

namespace cgdebug::cli {
namespace {

constexpr std::string_view kFirst = "Start here", kJobs = "Jobs that run", kFind = "Find out more",
                           kFiles = "Recordings", kSetup = "Set up";

constexpr Command kCommands[] = {
    {"run", kFirst, "Runs a job under cgdebug and sums up what its probes saw",
     "  cgdebug-cli run -- python train.py\n"
     "  cgdebug-cli run --watch '*' -- python train.py\n"
     "  cgdebug-cli run --fail-on nan,mismatch -- torchrun --nproc-per-node 8 train.py\n"
     "  cgdebug-cli run -o runs/a.cgrec --record 'blk*' -- python train.py\n"
     "  cgdebug-cli run --watch 'op:*' --eager --values 'fwd/layers.3.*' -o a.cgrec -- python "
     "train.py\n"
     "  cgdebug-cli run --blocking -- python train.py    names the kernel of a graph that fails\n"
     "  cgdebug-cli run --races -- python train.py       for cgdebug-cli races\n"
     "  cgdebug-cli run --no-live -- ./a.out\n",
     AddRun},
    {"why", kFirst, "What went wrong, with the rows that show it, and what was not looked at",
     "  cgdebug-cli why runs/a.cgrec\n"
     "  cgdebug-cli why                             the newest live job\n"
     "  cgdebug-cli why runs/a.cgrec --json\n",
     AddWhy, Output::kText},
    {"check", kFirst, "Names the first NaN or Inf and what led to it, and what else looks wrong",
     "  cgdebug-cli check runs/a.cgrec\n"
     "  cgdebug-cli check                           the newest live job\n"
     "  cgdebug-cli check runs/a.cgrec 'blk3.*' --replays 1200..1210\n"
     "  cgdebug-cli check --padding runs/a.cgrec    whether padding reached a real row\n",
     AddCheck, Output::kText},
    {"diff", kFirst, "What differs between two sources, and where it begins",
     "  cgdebug-cli diff --first eager.cgrec graph.cgrec\n"
     "  cgdebug-cli diff a.cgrec b.cgrec 'blk3.*' --replays 100..200\n"
     "  cgdebug-cli diff --bitwise --stat before.safetensors after.safetensors\n",
     AddDiff, Output::kText},
    {"report", kFirst, "Writes one HTML file with pictures of a source, or of two side by side",
     "  cgdebug-cli report runs/a.cgrec\n"
     "  cgdebug-cli report eager.cgrec graph.cgrec -o difference.html\n"
     "  cgdebug-cli report runs/a.cgrec --serve          for a browser on another machine\n"
     "  cgdebug-cli report live 'blk3.*' -f\n",
     AddReport, Output::kFile},
    {"top", kFirst, "A screen that follows jobs, ranks and the probes that change most",
     "  cgdebug-cli top\n"
     "  cgdebug-cli top 'blk3.*' --sort abs_max\n"
     "  cgdebug-cli top --json                      one frame, over one second\n",
     AddTop},
    {"where", kFirst, "Where each rank stands, also of a job that hangs or died",
     "  cgdebug-cli where\n"
     "  cgdebug-cli where train-4711 --json\n"
     "  cgdebug-cli where runs/last.cgrec           where each rank stood at its end\n",
     AddWhere, Output::kText},
    {"doctor", kFirst, "Checks this machine; says what to fix and how",
     "  cgdebug-cli doctor\n"
     "  cgdebug-cli doctor --modules 258            whether /dev/shm has room to watch that many\n"
     "  cgdebug-cli doctor --json\n",
     AddDoctor, Output::kText},
    {"ps", kJobs, "Jobs with probes: alive, and with -a dead but readable",
     "  cgdebug-cli ps\n"
     "  cgdebug-cli ps -a --json\n",
     AddPs, Output::kText},
    {"status", kJobs, "Health of the daemon, the rings and every rank",
     "  cgdebug-cli status\n"
     "  cgdebug-cli status train-4711\n",
     AddStatus},
    {"probes", kJobs, "What is probed: shape, lane, last replay, losses",
     "  cgdebug-cli probes\n"
     "  cgdebug-cli probes 'blk*.attn' '!blk3.*'\n"
     "  cgdebug-cli probes --sort bytes\n",
     AddProbes, Output::kText},
    {"graphs", kJobs, "The CUDA graphs of a job: captures, nodes, replays",
     "  cgdebug-cli graphs\n"
     "  cgdebug-cli graphs train-4711 -a\n"
     "  cgdebug-cli graphs --only unreplayed\n"
     "  cgdebug-cli graphs --memory\n",
     AddGraphs, Output::kText},
    {"tail", kJobs, "One line per snapshot, as they come",
     "  cgdebug-cli tail -f 'blk3.*'\n"
     "  cgdebug-cli tail -f --only nan\n"
     "  cgdebug-cli tail -n 100 --ranks 0,1 blk3.attn.out\n",
     AddTail},
    {"show", kJobs, "One tensor: statistics, histogram, values",
     "  cgdebug-cli show blk3.attn.out\n"
     "  cgdebug-cli show blk3.attn.out@1204 --where nan\n"
     "  cgdebug-cli show train-4711:blk3.attn.out@-2 -o attn.npy\n",
     AddShow},
    {"set", kJobs, "Changes captured probes while they replay",
     "  cgdebug-cli set 'blk3.*' --mode off\n"
     "  cgdebug-cli set blk3.attn.out --mode full --every 1 --count 20\n"
     "  cgdebug-cli set '*' --on 'absmax>1e4' --ttl 30m\n",
     AddSet},
    {"record", kJobs, "Writes live snapshots to disk",
     "  cgdebug-cli record start -o runs/a.cgrec --probes 'blk*' --count 100 --wait\n"
     "  cgdebug-cli record start -o runs/b.cgrec --max-size 20G\n"
     "  cgdebug-cli record list\n"
     "  cgdebug-cli record stop\n",
     AddRecord},
    {"freeze", kJobs, "Writes what is left of a job's newest replays to disk, even of a dead job",
     "  cgdebug-cli freeze -o runs/last.cgrec\n"
     "  cgdebug-cli freeze train-4711 -o runs/crash.cgrec --last 4\n",
     AddFreeze},
    {"info", kFind, "What is in a source, and what is missing from it",
     "  cgdebug-cli info runs/a.cgrec\n"
     "  cgdebug-cli info runs/ --ranks 0,1 'blk3.*'\n"
     "  cgdebug-cli info model.safetensors\n",
     AddInfo, Output::kText},
    {"stats", kFind, "Statistics of every probe over the replays of a source",
     "  cgdebug-cli stats runs/a.cgrec\n"
     "  cgdebug-cli stats runs/a.cgrec --sort abs_max\n"
     "  cgdebug-cli stats runs/a.cgrec --only nan\n"
     "  cgdebug-cli stats runs/a.cgrec 'blk3.*' --replays 1200.. --json\n",
     AddStats, Output::kText},
    {"ops", kFind, "What every op of a replay wrote, and the first op that differs",
     "  cgdebug-cli ops\n"
     "  cgdebug-cli ops train-4711@1204 --only nan\n"
     "  cgdebug-cli ops diff eager.cgrec train-4711@g:bs=8\n",
     AddOps, Output::kText},
    {"ranks", kFind, "The ranks of a job side by side, and the first whose replica differs",
     "  cgdebug-cli ranks                           the newest live job\n"
     "  cgdebug-cli ranks runs/ --replicated 'param/*'\n"
     "  cgdebug-cli ranks --follow /shared/runs/    while every node records into it\n",
     AddRanks, Output::kText},
    {"races", kFind, "Ops of captured graphs that touch the same bytes with no path between them",
     "  cgdebug-cli races                           the newest live job, started with run --races\n"
     "  cgdebug-cli races runs/a.cgrec\n"
     "  cgdebug-cli races train-4711 --json\n",
     AddRaces, Output::kText},
    {"audit", kFind, "Whether captured graphs still read the memory that the model has",
     "  cgdebug-cli audit                           the newest live job\n"
     "  cgdebug-cli audit runs/a.cgrec\n"
     "  cgdebug-cli audit train-4711 --json\n",
     AddAudit, Output::kText},
    {"ask", kFind,
     "What any op of a captured graph made, in a replay that is over or in the next one",
     "  cgdebug-cli ask train-4711@1204             the first NaN of replay 1204, run again\n"
     "  cgdebug-cli ask train-4711@g:bs=8@-1 'fwd/layers.3.*'\n"
     "  cgdebug-cli ask train-4711 'fwd/layers.3.*' --values rows.safetensors\n"
     "  cgdebug-cli ask train-4711 --slowest 10 --perfetto ops.json\n",
     AddAsk, Output::kText},
    {"repro", kFind, "One op of one replay as a script, with what it was given",
     "  cgdebug-cli repro train-4711@1204 fwd/layers.3.attn/softmax_0 -o repro/\n", AddRepro,
     Output::kText},
    {"query", kFind, "Read-only SQL over the snapshots of a source",
     "  cgdebug-cli query runs/a.cgrec 'SELECT * FROM v_first_nonfinite'\n"
     "  cgdebug-cli query --examples\n"
     "  cgdebug-cli query --schema\n",
     AddQuery, Output::kText},
    {"export", kFiles, "Writes a recording in another format",
     "  cgdebug-cli export runs/a.cgrec --to safetensors -o out/        one file per replay\n"
     "  cgdebug-cli export runs/a.cgrec --to csv -o stats.csv\n"
     "  cgdebug-cli export runs/a.cgrec --to perfetto -o trace.json\n"
     "  cgdebug-cli export runs/a.cgrec --to perfetto --trace torch.json -o both.json\n",
     AddExport, Output::kFile},
    {"verify", kFiles, "Checks every byte of a recording against its checksums",
     "  cgdebug-cli verify runs/a.cgrec\n"
     "  cgdebug-cli verify --json runs/\n",
     AddVerify, Output::kText},
    {"repair", kFiles, "Writes what can be read of a damaged recording into a new one",
     "  cgdebug-cli repair runs/a.cgrec                  writes runs/a.repaired.cgrec\n"
     "  cgdebug-cli repair runs/a.cgrec --dry-run\n",
     AddRepair, Output::kFile},
    {"extract", kFiles, "Makes one new recording of others, or of a part of them",
     "  cgdebug-cli extract runs/a.cgrec --probes 'blk3.*' --replays 1200..1210 -o small.cgrec\n"
     "  cgdebug-cli extract runs/r0.cgrec runs/r1.cgrec -o all.cgrec\n",
     AddExtract, Output::kFile},
    {"rm", kFiles, "Removes recordings, and nothing else",
     "  cgdebug-cli rm --dry-run runs/a.cgrec    says what would be removed\n"
     "  cgdebug-cli rm -f runs/a.cgrec\n",
     AddRemove},
    {"daemon", kSetup, "Starts, stops and finds the daemon",
     "  cgdebug-cli daemon start\n"
     "  cgdebug-cli daemon logs -f\n"
     "  cgdebug-cli daemon stop\n",
     AddDaemon},
    {"config", kSetup, "How a C++ program is compiled and linked with the probe library",
     "  g++ -std=c++20 main.cpp $(cgdebug-cli config --cflags --libs)\n"
     "  cmake -DCMAKE_PREFIX_PATH=$(cgdebug-cli config --prefix) ..\n",
     AddConfig},
    {"help", kSetup, "The help of a command, the environment variables, the manual page",
     "  cgdebug-cli help --all                      every command, in groups\n"
     "  cgdebug-cli help check\n"
     "  cgdebug-cli help daemon start\n"
     "  cgdebug-cli help variables\n"
     "  cgdebug-cli help --man | man -l -\n",
     AddHelp, Output::kText},
    {"completion", kSetup, "Prints a completion script for bash",
     "  source <(cgdebug-cli completion bash)\n", AddCompletion},
    {"__complete", kSetup, "Names for completion scripts, one per line", "", AddComplete},
};

}  // namespace

std::span<const Command> Commands() { return kCommands; }

std::string CommandList(bool all) {
  std::string text;
  std::string_view group;
  for (const Command& command : kCommands) {
    if (command.examples.empty() || (!all && command.group != kFirst)) continue;
    if (group != command.group) text += fmt::format("\n{}:\n", command.group);
    group = command.group;
    text += fmt::format("  {:<12} {}\n", command.name, command.summary);
  }
  return all ? text : text + "\nAll commands, in groups: cgdebug-cli help --all\n";
}

}  // namespace cgdebug::cli
