"""`cgdebug-cli run --watch` and CGDEBUG_WATCH: jobs that do not know of cgdebug."""

import contextlib
import json
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
import textwrap

import pytest

from conftest import ROOT

MODEL = """
    import torch
    from torch import nn
    torch.manual_seed(0)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.act, self.down = nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)

        def forward(self, x):
            return nn.Dropout(0.0)(x + self.down(self.act(self.up(x))))  # one that is made here

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(Block() for _ in range(4))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x
"""
# In step 5 a weight of one layer becomes NaN.
LOOP = """
    net, loss = Net(), nn.MSELoss()
    x = nn.Dropout(0.1)(torch.ones(4, 8))  # called first, without parameters
    for step in range(6):
        if step == 5:
            with torch.no_grad():
                net.layers[2].up.weight[1, 2] = float("nan")
        loss(call(net, x), x).backward()
    import sys
    assert "cgdebug" in sys.modules
    print("steps", step + 1)
"""


@pytest.fixture(autouse=True)
def own_run(monkeypatch):
    monkeypatch.delenv("CGDEBUG_RUN_ID")


@pytest.fixture
def run(daemon, cli, tmp_path):
    """run(code, *options) runs it under `run --watch`; the probes it left are in `probes`."""

    def start(*code, watch="*", options=(), expect=0, **environment):
        (tmp_path / "job.py").write_text("".join(map(textwrap.dedent, code)))
        done = cli(
            "run", "--watch", watch, *options, "--", sys.executable, str(tmp_path / "job.py"),
            **{"CGDEBUG_RUN_ID": tmp_path.name, **environment},
        )  # fmt: skip
        assert done.returncode == expect, done.stdout + done.stderr
        return done

    return start


def slots_of(cli, run_id):
    return json.loads(cli("--json", "probes", "-s", run_id).stdout)["probes"]


def probes_of(cli, run_id):
    return {one["name"] for one in slots_of(cli, run_id)}


CALLS = {
    "eager": "call = lambda net, x: net(x)\n",
    "compiled": """
        def call(net, x, made={}):
            if not made:
                made["c"] = torch.compile(net, backend="aot_eager", fullgraph=True)
            return made["c"](x)
    """,
    "compiled in place": """
        def call(net, x, made={}):
            if not made:
                made["c"] = net.compile(backend="aot_eager", fullgraph=True)
            return net(x)
    """,
}


@pytest.mark.parametrize("how", CALLS)
def test_the_layer_that_made_nan_first_is_named_in_a_job_that_never_imports_cgdebug(
    run, cli, how, tmp_path
):
    done = run(MODEL, CALLS[how], LOOP, options=["--fail-on", "nan"], expect=1)
    assert "steps 6" in done.stdout
    assert "first NaN: fwd/layers.2.up in call 6" in done.stderr
    assert "Using `torch.compile(module)`" not in done.stderr
    checked = cli("check", tmp_path.name)
    assert checked.returncode == 1, checked.stdout + checked.stderr
    assert "first non-finite: call 6, fwd/layers.2.up" in checked.stdout
    names = probes_of(cli, tmp_path.name)
    assert len(names) == 4 * 4 + 1 and "fwd/Net" in names and "fwd/layers.3.act" in names


def test_each_model_of_several_is_watched_and_the_globs_choose(run, cli, tmp_path):
    run(
        MODEL,
        """
        class Critic(Net):
            pass
        net, critic = Net(), Critic()
        critic(net(torch.ones(1, 8))).sum().backward()
        """,
        watch="*.up,!layers.1*",
    )
    layers = [f"layers.{i}.up" for i in (0, 2, 3)]
    assert probes_of(cli, tmp_path.name) == {
        *(f"fwd/{name}" for name in layers),
        *(f"fwd/Critic.{name}" for name in layers),
    }


def test_a_model_behind_a_module_that_does_not_hold_it_is_found(run, cli, tmp_path):
    run(
        MODEL,
        """
        class Pipeline(nn.Module):
            def __init__(self, net):
                super().__init__()
                self.held = [net]
            def forward(self, x):
                return self.held[0](x)
        Pipeline(Net())(torch.ones(1, 8))
        """,
    )
    assert "fwd/Net" in probes_of(cli, tmp_path.name)


def test_what_the_program_watches_itself_is_not_watched_twice(run, cli, tmp_path):
    run(
        MODEL,
        """
        import cgdebug
        net = Net()
        w = cgdebug.watch(net, "layers.0.*")
        net(torch.ones(1, 8))
        """,
    )
    assert probes_of(cli, tmp_path.name) == {f"fwd/layers.0.{s}" for s in ("up", "act", "down")}


def test_what_is_put_into_a_model_later_is_watched_and_what_a_call_makes_is_not(run, cli, tmp_path):
    run(
        MODEL,
        """
        other = nn.Sequential(nn.Linear(8, 8))
        other(torch.ones(1, 8))
        net = Net()
        net(torch.ones(1, 8))
        net.layers[0].up, net.layers[0].down = nn.Linear(8, 5), nn.Linear(5, 8)
        net.layers[0].act = nn.Sequential(nn.ReLU(), nn.Identity())
        net.layers.append(Block())
        other.append(nn.Linear(8, 8))
        for _ in range(2):
            other(net(torch.ones(1, 8)))
        """,
    )
    probes = probes_of(cli, tmp_path.name)
    later = {"0.act.0", "0.act.1", *(f"4{part}" for part in ("", ".up", ".act", ".down"))}
    assert {f"fwd/layers.{name}" for name in later} | {"fwd/1"} <= probes
    of_first = [one for one in slots_of(cli, tmp_path.name) if one["name"] == "fwd/layers.0.up"]
    assert {tuple(one["shape"]) for one in of_first} == {(1, 16), (1, 5)}
    assert not [name for name in probes if "Dropout" in name]


@pytest.mark.parametrize(
    "made",
    [
        "call = torch.compile(net, backend='aot_eager')",
        "net.compile(backend='aot_eager'); call = net",
    ],
)
def test_what_is_put_into_a_compiled_model_is_watched(run, cli, tmp_path, made):
    run(
        MODEL,
        """
        net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        MADE
        for _ in range(2):
            call(torch.ones(1, 8))
        net[1] = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        call(torch.ones(1, 8))
        """.replace("MADE", made),
    )
    assert {"fwd/1.0", "fwd/1.1"} <= probes_of(cli, tmp_path.name)


def test_spawned_workers_are_watched_and_a_copied_model_works_there(run, cli, tmp_path):
    run(
        MODEL,
        """
        def work(net):
            net(torch.ones(1, 8))

        if __name__ == "__main__":
            net = Net()
            net(torch.ones(1, 8))
            import multiprocessing
            worker = multiprocessing.get_context("spawn").Process(target=work, args=(net,))
            worker.start()
            worker.join()
            assert worker.exitcode == 0
        """,
    )
    of_model = [one for one in slots_of(cli, tmp_path.name) if one["name"] == "fwd/Net"]
    assert len({one["session"] for one in of_model}) == 2


def in_front(folder):
    """PYTHONPATH with `folder` in front; only a build tree sets one before."""
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))


def test_the_users_own_sitecustomize_and_path_are_as_without_watch(run, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys\nsys.of_the_user = __file__\n")
    show = """
        import sys, sitecustomize
        print(sys.of_the_user, sitecustomize.__file__, sys.path)
    """
    watched = run(show, PYTHONPATH=in_front(own))
    plain = subprocess.run(
        [sys.executable, str(tmp_path / "job.py")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": in_front(own)},
        check=True,
    )
    assert watched.stdout == plain.stdout and str(own) in plain.stdout


def test_an_error_in_the_users_sitecustomize_stays_the_users(run, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("raise RuntimeError('of the user')\n")
    done = run("import sys\nprint('ran')\n", PYTHONPATH=in_front(own))
    assert "ran" in done.stdout and "of the user" in done.stderr


def test_globs_that_choose_nothing_are_said_once_and_the_job_goes_on(run):
    done = run(
        MODEL,
        "net = Net()\nfor _ in range(3): net(torch.ones(1, 8))\nprint('ran')\n",
        watch="layer.*",
    )
    assert "ran" in done.stdout
    assert done.stderr.count("Net is not watched, as CGDEBUG_WATCH asks: no module matches") == 1
    (line,) = [line for line in done.stderr.splitlines() if "next:" in line]
    assert " run --watch '*' " in line and "layer.*" not in line and line.endswith("job.py")


def test_a_typo_in_a_glob_is_answered_with_the_names_that_are_close(run):
    done = run(MODEL, "Net()(torch.ones(1, 8))\n", watch="layesr.0")
    assert "select='layesr.0'. Close: 'layers.0'" in done.stderr


def test_a_program_whose_only_module_has_no_parameters_is_told_so_at_its_end(run):
    done = run(MODEL, "nn.GELU()(torch.ones(2))\n")
    assert "GELU is not watched, as CGDEBUG_WATCH asks: it has no parameters" in done.stderr
    done = run(MODEL, "nn.GELU()(torch.ones(2))\nNet()(torch.ones(1, 8))\n")
    assert "is not watched" not in done.stderr


WITHOUT_PARAMETERS = {
    "quantized": """
        import warnings
        warnings.simplefilter("ignore")
        net = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        net = torch.ao.quantization.quantize_dynamic(net, {nn.Linear})
    """,
    "buffers": """
        class Scale(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("scale", torch.ones(8))
            def forward(self, x):
                return x * self.scale
        net = Scale()
    """,
    "submodules": "net = nn.Sequential(nn.ReLU(), nn.Softmax(-1))",
}


@pytest.mark.parametrize("watch", ["*", "op:*"])
@pytest.mark.parametrize(
    ("kind", "value", "code"),
    [("quantized", "1.0", 0), ("buffers", "1.0", 0), ("submodules", "float('nan')", 1)],
)
def test_calls_of_a_model_without_parameters_are_seen(run, kind, value, code, watch):
    program = f"""
        for i in range(5):
            net(torch.full((1, 8), {value} if i == 3 else 1.0))
    """
    is_log = watch == "op:*"
    options = ("--fail-on", "nan", *("--eager",) * is_log)
    if is_log and kind == "quantized":
        code = 3  # no row shows the weights
    done = run(
        "import torch\nfrom torch import nn\n",
        WITHOUT_PARAMETERS[kind],
        program,
        watch=watch,
        options=options,
        expect=code,
    )
    assert "after 5 calls" in done.stderr, done.stderr


@pytest.mark.parametrize("watch", ["*", "op:*"])
def test_a_module_without_parameters_is_no_model_beside_one_with_them(run, watch):
    program = """
        before, net = nn.Sequential(nn.ReLU(), nn.Tanh()), Net()
        behind = nn.Sequential(nn.Softmax(-1), nn.ReLU())
        for _ in range(5):
            behind(net(before(torch.ones(1, 8))))
    """
    options = ("--eager",) * (watch == "op:*")
    done = run(MODEL, program, watch=watch, options=options)
    assert "after 6 calls" in done.stderr, done.stderr  # the first of `before` is one


def test_ops_of_functions_alone_are_logged_step_by_step(run):
    program = """
        import torch, cgdebug
        weight = torch.ones(3, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for step in range(5):
            cgdebug.step(step)
            x = torch.log(torch.full((3,), -1.0 if step == 3 and FAULT else 1.0))
            (x * weight).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    """
    for fault, code in (("True", 1), ("False", 0)):
        done = run(
            program.replace("FAULT", fault),
            watch="op:*",
            options=("--eager", "--fail-on", "nan"),
            expect=code,
        )
        assert "after 5 calls" in done.stderr, done.stderr
        assert code == 0 or "first NaN: fwd/log_0 in call 4" in done.stderr, done.stderr


def test_a_call_that_the_program_logs_itself_has_one_number(run, cli, tmp_path):
    program = """
        import cgdebug
        class Scaled(Net):
            def forward(self, x):
                return super().forward(x) * (float("nan") if step == 6 else 1.0)
        net, step = Scaled(), 0
        def train(steps):
            global step
            for _ in range(steps):
                step += 1
                net(torch.ones(1, 8)).sum().backward()
        train(FIRST)
        with cgdebug.debug_mode(net, eager=True) as log:
            train(4)
        assert len(log.calls) == 4, log.calls
        train(4 - FIRST)
    """
    for first in (0, 2):
        done = run(MODEL, program.replace("FIRST", str(first)), watch="op:*", options=("--eager",))
        assert "after 8 calls" in done.stderr and " in call 6, " in done.stderr, done.stderr


@pytest.mark.parametrize(("value", "code"), [("1.0", 0), ("float('nan')", 1)])
def test_what_a_worker_of_a_dataloader_makes_is_an_input_and_the_run_says_so(
    run, cli, tmp_path, value, code
):
    program = f"""
        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 8
            def __getitem__(self, index):
                return torch.full((8,), {value} if index == 5 else 1.0)
        net = Net()
        for _ in range(2):
            for x in torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=1):
                net(x)
    """
    options = ("--eager", "--fail-on", "nan")
    done = run(MODEL, program, watch="op:*", options=options, expect=code)
    assert done.stderr.count("ops in the worker process of a DataLoader are not logged") == 1
    assert "after 8 calls" in done.stderr, done.stderr
    assert not code or "first NaN: in/layers.0.up/addmm_0.mat1 in call 3" in done.stderr
    assert cli("check", tmp_path.name).returncode == code


def test_a_step_that_is_set_before_the_model_is_called_begins_its_call(run):
    program = """
        import cgdebug
        net = Net()
        for step in range(5):
            cgdebug.step(step)
            x = torch.full((1, 8), float("nan") if step == 0 else 1.0)
            net(x)
    """
    done = run(MODEL, program, watch="op:*", options=("--eager",))
    assert "after 5 calls" in done.stderr and "first NaN: fwd/full_0 in call 1" in done.stderr


HALF_IMPORTED = """
    import sys
    from cgdebug._job._after_import import call_after_import
    calls = sys.__dict__.setdefault("calls_of_" + __name__, [])
    for name in "ab":
        call_after_import(__name__, lambda module, name=name: calls.append((name, module.done)))
    assert len(calls) == 0
    {body}
    done = True
"""


def test_a_module_whose_import_is_under_way_is_acted_on_when_it_ends(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "half_imported.py").write_text(textwrap.dedent(HALF_IMPORTED.format(body="")))
    import half_imported

    assert half_imported.calls == [("a", True), ("b", True)]
    assert type(half_imported.__spec__).__name__ == "ModuleSpec"


def test_an_import_that_fails_half_way_is_waited_for_again(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    body = "sys.tries = getattr(sys, 'tries', 0) + 1; assert sys.tries > 1"
    (tmp_path / "fails_once.py").write_text(textwrap.dedent(HALF_IMPORTED.format(body=body)))
    with pytest.raises(AssertionError):
        import fails_once
    import fails_once

    assert sorted(fails_once.calls) == [("a", True), ("a", True), ("b", True), ("b", True)]


@pytest.mark.parametrize(
    "watch, text",
    [
        ("re:(", "--watch: "),
        ("a,,b", "--watch: "),
    ],
)
def test_what_cannot_be_watched_is_refused_before_the_job_starts(run, watch, text):
    done = run("print('ran')", watch=watch, expect=2)
    assert text in done.stderr and "ran" not in done.stdout


def test_the_variable_alone_watches_a_job_that_imports_cgdebug_and_nothing_happens_without_it(
    daemon, tmp_path
):
    code = textwrap.dedent(MODEL) + textwrap.dedent(
        """
        import cgdebug
        net = Net()
        net(torch.ones(1, 8))
        print(len(net.layers[0].up._forward_hooks),
              len(torch.nn.modules.module._global_forward_pre_hooks))
        """
    )
    (tmp_path / "job.py").write_text(code)

    def hooks(order, **environment):
        text = code if order == "torch first" else "import cgdebug\n" + code
        done = subprocess.run(
            [sys.executable, "-c", text], capture_output=True, text=True, check=True,
            env={**os.environ, **environment},
        )  # fmt: skip
        return done.stdout.split()

    for order in ("torch first", "cgdebug first"):
        assert hooks(order, CGDEBUG_WATCH="module:*.up") == ["1", "1"]
    assert hooks("torch first", CGDEBUG_WATCH="*.down") == ["0", "1"]
    assert hooks("cgdebug first") == ["0", "0"]


PTH = ROOT / "python" / "cgdebug.pth"


def start_of_python(site, code, **environment):
    """Python's own start of a folder of packages, as of site-packages, then a program."""
    text = f"import site; site.addsitedir({str(site)!r})\n{code}"
    return subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


def test_what_pip_installs_watches_a_program_that_knows_nothing_of_it(daemon, tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    shutil.copy(PTH, site)
    code = textwrap.dedent(MODEL) + textwrap.dedent(
        """
        import sys
        net = Net()
        net(torch.ones(1, 8))
        print(len(net.layers[0].up._forward_hooks), "cgdebug" in sys.modules)
        """
    )
    for environment, shown in (({"CGDEBUG_WATCH": "*.up"}, ["1", "True"]), ({}, ["0", "False"])):
        done = start_of_python(site, code, **environment)
        assert (done.stdout.split(), done.stderr) == (shown, "")
    # What the package starts by itself, it starts here.
    source = (ROOT / "client/cli/doctor/settings.cpp").read_text()
    names = re.findall(
        r'"(CGDEBUG_\w+)"', source.partition("kOfPackage[] = {")[2].partition("}")[0]
    )
    assert len(names) >= 5
    for name in names:
        done = start_of_python(site, "import sys; print('cgdebug' in sys.modules)", **{name: "1"})
        assert done.stdout == "True\n", name


@pytest.mark.parametrize("python_path", ["", "/some/_at_start"])
def test_on_a_terminal_a_line_says_what_the_variable_watches(daemon, tmp_path, python_path):
    code = (
        textwrap.dedent(MODEL) + "import cgdebug\nNet()(torch.ones(1, 8))\nNet()(torch.ones(1, 8))"
    )
    master, slave = pty.openpty()
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), python_path]))
    environment = {**os.environ, "CGDEBUG_WATCH": "*", "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", code], stderr=slave, env=environment, check=True)
    os.close(slave)
    said = ""
    with contextlib.suppress(OSError):  # nothing was said, and nobody has the other end
        said = os.read(master, 65536).decode()
    os.close(master)
    line = "cgdebug: Net is watched, as CGDEBUG_WATCH asks. In another terminal, or when"
    assert said.count(line) == (0 if python_path else 1), said


EAGER_LOOP = """
    import os
    net = Net()
    if os.environ.get("BREAK"):
        net.layers[2].scale = 1.5
    made = torch.compile(net, backend="inductor", fullgraph=True)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for step in range(3):
        nn.functional.mse_loss(made(torch.full((4, 8), step + 1.0)), torch.ones(4, 8)).backward()
        optimizer.step()
        optimizer.zero_grad()
    print("compiled frames:", sum(torch._dynamo.utils.counters["frames"].values()))
"""


def test_run_takes_the_variable_for_an_option(cli, daemon, tmp_path):
    (tmp_path / "job.py").write_text(textwrap.dedent(MODEL) + "Net()(torch.ones(1, 8))")
    environment = {"CGDEBUG_RUN_ID": tmp_path.name, "CGDEBUG_WATCH": "layers.1"}
    done = cli("run", "--", sys.executable, str(tmp_path / "job.py"), **environment)
    assert done.returncode == 0, done.stderr
    assert probes_of(cli, tmp_path.name) == {"fwd/layers.1"}


ENCODER_FIRST = """
    import torch
    from torch import nn

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x, encoded):
            return self.decoder(x) + encoded

    net, x = Both(), torch.ones(2, 4)
    encoded = net.encoder(x)
    for _ in range(3):
        x = net(x, encoded)
"""


def test_a_model_whose_part_was_called_first_begins_the_calls_of_the_log(run, cli, tmp_path):
    done = run(ENCODER_FIRST, watch="op:*", options=["--eager"])
    assert "after 4 calls" in done.stderr


def test_check_has_no_line_twice(run, cli, tmp_path):
    run(
        """
        import torch
        net = torch.nn.Linear(4, 4)
        torch.nn.init.zeros_(net.bias)
        for _ in range(3):
            (net(torch.ones(2, 4)) * torch.zeros(4)).sum().backward()
        """,
        watch="op:*",
        options=["--eager"],
    )
    lines = cli("check", tmp_path.name).stdout.splitlines()
    notes = [line for line in lines if line.startswith("note: in/bias is all zeros")]
    assert len(notes) == 1 and len(set(lines)) == len(lines), lines


def test_doctor_says_which_programs_read_the_variables_that_are_set(cli):
    said = (
        "CGDEBUG_RACES, CGDEBUG_WATCH: read by programs that import cgdebug or whose Python has it"
    )
    assert said in cli("doctor", CGDEBUG_WATCH="*", CGDEBUG_RACES="1").stdout
    assert "read by programs" not in cli("doctor", CGDEBUG_FAIL_ON="nan").stdout


def test_an_eager_run_of_a_compiled_program_is_the_reference_for_ops_diff(run, cli, tmp_path):
    model = MODEL.replace("self.act(self.up(x))", "self.act(self.up(x)) * self.scale").replace(
        "super().__init__()\n            self.up",
        "super().__init__()\n            self.scale = 1.0\n            self.up",
    )
    paths = [str(tmp_path / "right.cgrec"), str(tmp_path / "broken.cgrec")]
    for path, breaks in zip(paths, ("", "1")):
        options = ["--eager", "-o", path]
        done = run(model, EAGER_LOOP, watch="op:*", options=options, BREAK=breaks, expect=0)
        assert "compiled frames: 0" in done.stdout
    log = json.loads(cli("--json", "ops", paths[0]).stdout)
    assert log["replay"] == 3 and log["lost"] == 0 and log["missing"] == []
    names = [row["name"] for row in log["rows"]]
    assert "fwd/layers.2.down/addmm_0" in names and "bwd/layers.0.up/mm_0" in names
    assert any(name.startswith("opt/") for name in names), names
    replays = [
        json.loads(cli("--json", "ops", f"{paths[0]}@{n}").stdout)["rows"] for n in (1, 2, 3)
    ]
    assert [[row["name"] for row in rows] for rows in replays[1:]] == [names, names]
    assert not any(row["name"].startswith("fwd/Net/") for row in replays[0])
    found = cli("ops", "diff", f"{paths[1]}@1", f"{paths[0]}@1")
    assert found.returncode == 1, found.stdout + found.stderr
    assert "first divergence: #" in found.stdout and "fwd/layers.2/mul_0" in found.stdout


@pytest.mark.parametrize("how", CALLS)
def test_what_is_typed_next_looks_into_compiled_code_where_the_run_had_some(
    run, cli, how, tmp_path
):
    done = run(MODEL, CALLS[how], LOOP.replace("step == 5", "False"))
    job = f"{sys.executable} {tmp_path / 'job.py'}"
    typed = re.findall(r"next:  (cgdebug-cli run .*)", done.stderr)
    inside = f"cgdebug-cli run --watch 'fx:*' -- {job}"
    eagerly = f"cgdebug-cli run --watch 'op:*' --eager -- {job}"
    expected = [eagerly] if how == "eager" else [inside, eagerly + "  # not compiled"]
    assert typed == expected, done.stderr
    compiled = {slot["compiled"] for slot in slots_of(cli, tmp_path.name)}
    assert (True in compiled) == (how != "eager")


def test_a_job_that_goes_on_with_nan_is_followed_from_the_module_to_the_op(run, cli, tmp_path):
    loop = LOOP.replace("range(6)", "range(8)")
    done = run(MODEL, CALLS["eager"], loop)
    job = str(tmp_path / "job.py")
    assert f"next:  cgdebug-cli run --watch 'op:*' --eager -- {sys.executable} {job}" in done.stderr
    assert re.search(r"next:  cgdebug-cli check \w+\n", done.stderr), done.stderr
    done = run(MODEL, CALLS["eager"], loop, watch="op:*", options=["--eager"])
    command = re.search(r"next:  cgdebug-cli (ops .*)", done.stderr)
    assert command, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("call ")]
    page = (
        r"call \d+ op log: \d+ rows, \d+ with NaN or Inf, first #\d+ \S+: .*  cgdebug-cli (ops .*)"
    )
    pages = [re.fullmatch(page, line) for line in said]
    assert pages and all(pages), done.stderr
    assert len({page[1] for page in pages}) == len(pages), "each replay has one line"
    assert "first non-finite: #" in cli(*shlex.split(pages[-1][1])).stdout
    shown = cli(*shlex.split(command[1])).stdout
    # Whether the NaN that is written has a row depends on where torch's allocator put it.
    first = r"first non-finite: #\d+ (fwd/copy__0|in/copy__0\.src), 1 NaN, job.py"
    assert re.search(first, shown), shown


def test_eager_without_a_log_says_what_to_type(run):
    done = run("", watch="fx:*", options=["--eager"], expect=2)
    assert "--watch 'op:*' --eager" in done.stderr


def test_a_module_without_a_hash_stops_no_job(run):
    done = run(
        "import torch\n\n\nclass NoHash(torch.nn.Linear):\n    __hash__ = None\n",
        "net = NoHash(2, 2)\nfor _ in range(3): net(torch.ones(1, 2))\nprint('ran')\n",
        watch="*",
    )
    assert "ran" in done.stdout and done.stderr.count("NoHash is not watched") == 1


def test_a_watch_without_its_globs_says_what_was_meant(cli, tmp_path):
    for words in (["--", "python", "x.py"], ["python", "x.py"]):
        done = cli("run", "--watch", *words)
        assert done.returncode == 2 and "what to watch is missing" in done.stderr, done.stderr
        assert "Type: cgdebug-cli run --watch '*' -- python x.py" in done.stderr
    for words in (["test", "true"], ["test", "--", "true"]):  # a module may be called so
        assert cli("run", "--watch", *words).returncode == 0


def test_a_log_of_captures_says_so_in_a_job_without_one(run, tmp_path):
    code = [MODEL, "Net()(torch.ones(1, 8))\n"]
    done = run(*code, watch="op:*")
    text = "level op logs what CUDA graphs capture, and no such graph was replayed"
    assert text in done.stderr
    assert f"run --watch 'op:*' --eager -- {sys.executable}" in done.stderr
    done = run(*code, watch="op:*", options=["-o", str(tmp_path / "a.cgrec")], expect=4)
    assert f"nothing was recorded: {text}" in done.stderr
    assert text not in run(*code, watch="op:*", options=["--eager"]).stderr


@pytest.mark.parametrize(("factor", "code"), [("2.0", 0), ("float('nan')", 1)])
def test_a_log_goes_on_when_its_first_model_is_gone(run, factor, code):
    program = """
        def ends():
            return nn.Sequential(nn.Linear(8, 8))(torch.ones(1, 8))
        class Scales(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = Net()
            def forward(self, x):
                return self.net(x) * FACTOR
        ends()
        net = Scales()
        for _ in range(3):
            net(torch.ones(1, 8))
    """
    done = run(
        MODEL, program.replace("FACTOR", factor), watch="op:*",
        options=("--eager", "--fail-on", "nan"), expect=code,
    )  # fmt: skip
    assert "after 4 calls" in done.stderr, done.stderr


@pytest.mark.parametrize("watch, options", [("*", ()), ("op:*", ("--eager",))])
def test_a_model_that_the_program_drops_is_gone_and_no_compiler_is_imported(run, watch, options):
    code = """
        import gc, sys, weakref
        gc.disable()  # what is dropped does not wait for the collector
        for _ in range(2):
            net = Net()
            net(torch.ones(4, 8))
            gone = weakref.ref(net)
            del net
            assert gone() is None
        assert "torch._dynamo" not in sys.modules
    """
    run(MODEL, code, watch=watch, options=options)


def test_calls_are_those_of_another_model_when_the_first_is_called_no_more(run):
    program = """
        first, net = nn.Linear(8, 8), Net()
        first(torch.ones(1, 8))
        for _ in range(40):
            net(torch.ones(1, 8))
    """
    done = run(MODEL, program, watch="op:*", options=("--eager",))
    assert "after 26 calls" in done.stderr, done.stderr  # call 1 has 15 of them


TRANSFORMS = """
    import warnings
    warnings.simplefilter("error", torch.jit.TracerWarning)

    class Last(nn.Module):
        def forward(self, x):
            return x * FACTOR + 1

    net, x = nn.Sequential(nn.Linear(4, 4), Last()), torch.ones(2, 4)
    parameters = dict(net.named_parameters())
    def loss(parameters):
        return torch.func.functional_call(net, parameters, (x,)).sum()
    FIRST(net, x)
    traced, scripted = torch.jit.trace(net, x), torch.jit.script(net)
    for _ in range(3):
        traced(x)
        scripted(x)
        torch.func.grad(loss)(parameters)
        torch.vmap(net)(torch.ones(3, 2, 4))
"""


@pytest.mark.parametrize(("factor", "code"), [("2.0", 0), ("float('nan')", 1)])
@pytest.mark.parametrize(
    "first", ["torch.jit.trace", "lambda *_: torch.func.grad(loss)(parameters)"]
)
def test_a_log_of_traced_scripted_and_transformed_code_is_whole(run, first, factor, code):
    program = TRANSFORMS.replace("FACTOR", factor).replace("FIRST", f"({first})")
    options = ("--eager", "--fail-on", "nan")
    done = run(MODEL, program, watch="op:*", options=options, expect=code)
    assert "not watched" not in str(done), done


@pytest.mark.parametrize("watch", ["*", "op:*"])
def test_a_watched_job_exports_the_program_that_it_exports_alone(run, watch):
    """strict=True: Dynamo refuses what it traces under a global hook."""
    run(
        """
        import torch
        from torch.export import export
        net, x = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), torch.ones(2, 4)
        expected = net(x)
        for strict in (True, False):
            program = export(net, (x,), strict=strict)
            assert not [node for node in program.graph.nodes if "cgdebug" in str(node.target)]
            assert torch.equal(program.module()(x), expected)
        """,
        watch=watch,
    )


VALUES = """
import torch
net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
with torch.no_grad():
    net[0].weight.fill_(3.0)
    net[0].bias.zero_()
    for _ in range(2):
        net(torch.ones(1, 2))
"""


def test_run_keeps_the_values_of_the_rows_that_it_names(cli, tmp_path):
    script, path = tmp_path / "job.py", str(tmp_path / "a.cgrec")
    script.write_text(VALUES)
    job = ("--", sys.executable, str(script))
    log = ("run", "--watch", "op:*", "--eager", "-o", path)
    ran = cli(*log, "--values", "fwd/0/*,!*.weight", *job)
    assert ran.returncode == 0, ran.stderr
    for call in (1, 2):
        shown = cli("show", f"{path}:fwd/0/addmm_0.value@call:{call}", "--json")
        assert json.loads(shown.stdout)["values"] == [6.0, 6.0], shown
    names = json.loads(cli("query", path, "select name from probe", "--json").stdout)
    assert [one["name"] for one in names if one["name"].endswith(".value")] == [
        "fwd/0/addmm_0.value"
    ]
    # Of the row itself there are statistics alone, and the answer says what to type.
    row = cli("show", f"{path}:fwd/0/addmm_0@call:1").stdout
    assert "run --watch 'op:*' --eager --values fwd/0/addmm_0 -o values.cgrec --" in row


@pytest.mark.parametrize("watch", [(), ("--watch", "*"), ("--watch", "fx:*")])
def test_values_of_rows_need_an_op_log(cli, watch):
    ran = cli("run", *watch, "--values", "fwd/0/*", "--", "true")
    assert ran.returncode == 2 and "--watch 'op:*' --values 'fwd/0/*'" in ran.stderr, ran.stderr
