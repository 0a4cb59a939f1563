"""What cgdebug-daemon exports to Prometheus: a page over HTTP, and a file."""

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request

import pytest
import torch

import cgdebug
from conftest import ROOT, Job, find_program, stop, wait_until

SERIES = re.compile(r'(\w+)(?:\{((?:\w+="(?:[^"\\]|\\.)*",?)*)\})? (\S+)')
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
DASHBOARD = ROOT / "tools" / "grafana.json"


@pytest.fixture(autouse=True, scope="module")
def _is_built_with_prometheus():
    done = subprocess.run(
        [find_program("cgdebug-daemon"), "--foreground", "--metrics-textfile", "/nowhere/at/all"],
        capture_output=True,
        text=True,
    )
    is_missing = "built without prometheus-cpp" in done.stderr
    if is_missing and not os.environ.get("CGDEBUG_REQUIRE_PROMTOOL"):
        pytest.skip("built without prometheus-cpp. Type: apt-get install prometheus-cpp-dev")


class Page:
    """A page of metrics; page("name", label="value") is the one series with these labels."""

    def __init__(self, text):
        self.text = text
        self.series = []
        for line in text.splitlines():
            if not line.startswith("#"):
                name, labels, value = SERIES.fullmatch(line).groups()
                self.series.append((name, dict(LABEL.findall(labels or "")), float(value)))
        self.names = {name for name, _, _ in self.series}

    def all(self, name, **labels):
        return [
            (have, value)
            for one, have, value in self.series
            if one == name and labels.items() <= have.items()
        ]

    def of_job(self, pid):
        """The label that the series of a job have; none while it is not known."""
        return [
            {"session": have["session"]}
            for have, _ in self.all("cgdebug_session_info", pid=str(pid))
        ]

    def __call__(self, name, **labels):
        ((_, value),) = self.all(name, **labels)
        return value


@pytest.fixture
def exporting(own_daemon):
    """exporting(*flags): a daemon, and how to fetch a path of it."""

    def make(*flags):
        daemon = own_daemon("--metrics-listen", "127.0.0.1:0", *flags)
        said = re.findall(r"metrics on (http://\S+)/metrics", daemon.log())
        daemon.url = said[-1]
        daemon.page = lambda: Page(fetch(daemon.url + "/metrics"))
        return daemon

    return make


def fetch(url):
    with urllib.request.urlopen(url, timeout=120) as answer:
        return answer.read().decode()


def page_with(daemon, condition, what):
    pages = []

    def holds():
        pages.append(daemon.page())
        return condition(pages[-1])

    wait_until(holds, what)
    return pages[-1]


def find_prometheus(name):
    program = shutil.which(name)
    if program is None and not os.environ.get("CGDEBUG_REQUIRE_PROMTOOL"):
        pytest.skip(f"no {name} here. Type: apt-get install prometheus")
    return program


@pytest.fixture
def promtool():
    program = find_prometheus("promtool")

    def check(*arguments, text=None):
        done = subprocess.run(
            [program, "check", *arguments], input=text, text=True, capture_output=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    return check


def test_a_page_says_what_status_says(exporting, promtool):
    """Losses and a NaN included, with a name that only fits when it is escaped."""
    daemon = exporting()
    job = Job("""
        p = CudaGraphTensorProbe('blk0\\\\"x"', [TensorRecord(capacity=4)], mode="always")
        for line in sys.stdin:
            for _ in range(20):
                p(torch.tensor([1.5, -3.0, float("nan"), float("-inf")]))
            print("done")
    """)
    job.go_on(), job.line()
    page = page_with(daemon, lambda page: page.of_job(job.pid), "the job is seen")
    (me,) = page.of_job(job.pid)
    stop(daemon.process.pid)
    job.go_on(), job.line()
    os.kill(daemon.process.pid, signal.SIGCONT)
    page = page_with(
        daemon,
        lambda page: (
            page("cgdebug_snapshots_produced_total", **me) == 40
            and page("cgdebug_snapshots_unread", **me) == 0
        ),
        "everything is read or lost",
    )
    with daemon.connect() as client:
        (session,) = client.status(session=me["session"]).sessions
    counters = session.counters
    lost = {have["cause"]: value for have, value in page.all("cgdebug_snapshots_lost_total", **me)}
    assert lost["overwritten"] == counters.lost_overwritten > 0
    assert sum(lost.values()) + page("cgdebug_snapshots_consumed_total", **me) == 40
    assert page("cgdebug_snapshots_consumed_bytes_total", **me) == counters.bytes
    assert page("cgdebug_session_replays_total", **me) == 40
    assert page("cgdebug_session_alive", **me) == 1
    assert page("cgdebug_session_nonfinite_probes", **me) == 1
    assert page.all("cgdebug_session_info", **me)[0][0]["label"] == session.label
    mine = {**me, "probe": r"blk0\\\"x\""}
    assert page("cgdebug_probe_replay", **mine) == 40
    assert page("cgdebug_probe_abs_max", **mine) == 3.0
    assert page("cgdebug_probe_mean", **mine) == -0.75
    assert page("cgdebug_probe_nan_elements", **mine) == 1
    assert page("cgdebug_probe_inf_elements", **mine) == 1
    assert page("cgdebug_probe_nonfinite", **mine) == 1
    assert promtool("metrics", text=page.text) == ""
    job.finish()


def test_a_job_that_died_is_told_from_one_that_ended(exporting):
    daemon = exporting()
    code = """
        p = CudaGraphTensorProbe("x", [TensorRecord(2)], mode="always")
        p(torch.ones(2))
        print("ready"); sys.stdin.readline()
    """
    dies, ends = Job(code), Job(code)
    dies.line(), ends.line()
    page = page_with(
        daemon, lambda page: page.of_job(dies.pid) and page.of_job(ends.pid), "both are seen"
    )
    (died,), (ended,) = page.of_job(dies.pid), page.of_job(ends.pid)
    page_with(daemon, lambda page: page.all("cgdebug_probe_replay", **died), "it is read")
    os.kill(dies.pid, signal.SIGKILL)
    dies.process.wait()
    ends.go_on()
    ends.finish()
    page = page_with(
        daemon,
        lambda page: (
            not page("cgdebug_session_alive", **died) and not page("cgdebug_session_alive", **ended)
        ),
        "both ended",
    )
    assert page("cgdebug_session_died", **died) == 1 and page("cgdebug_session_died", **ended) == 0
    # An earlier test may have left a job that this daemon found, too.
    assert page("cgdebug_sessions", state="died") >= 1
    assert page("cgdebug_sessions", state="exited") >= 1
    assert page("cgdebug_snapshots_consumed_total", **died) == 1
    assert not page.all("cgdebug_probe_replay", **died)


def test_a_reader_of_the_text_file_never_sees_half_of_it(own_daemon, tmp_path, probe):
    file = tmp_path / "cgdebug.prom"
    daemon = own_daemon("--metrics-textfile", str(tmp_path), "--metrics-interval", "1ms")
    assert file.stat().st_mode & 0o777 == 0o644
    p = probe(cgdebug.TensorRecord(2), name="x")
    seen = set()

    def twenty_pages_are_read():
        for _ in range(20):
            p(torch.ones(2))
            text = file.read_text()
            seen.add(text)
            assert text.startswith("# HELP cgdebug_build_info") and text.endswith("\n")
            Page(text)
        return len(seen) > 20

    wait_until(twenty_pages_are_read, "the file is written again and again")
    refused = subprocess.run(
        [find_program("cgdebug-daemon"), "--foreground", "--socket", f"{tmp_path}/other.sock"]
        + ["--metrics-textfile", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert refused.returncode == 2
    assert f"another daemon writes its metrics into {tmp_path}" in refused.stderr
    daemon.stop()
    assert not file.exists()
    assert not list(tmp_path.glob("*.prom*"))


def test_a_client_that_says_nothing_keeps_nobody_waiting(exporting):
    daemon = exporting()
    host, port = daemon.url.removeprefix("http://").split(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(8)]
    answers = []
    asking = [threading.Thread(target=lambda: answers.append(daemon.page())) for _ in range(4)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join(120)
    assert len(answers) == 4
    for one in silent:
        one.close()


def test_http_says_what_is_wrong_with_a_request(exporting):
    daemon = exporting()
    assert 'href="/metrics"' in fetch(daemon.url + "/")
    with pytest.raises(urllib.error.HTTPError) as missing:
        fetch(daemon.url + "/nothing")
    assert missing.value.code == 404 and b"/metrics" in missing.value.read()
    connection = http.client.HTTPConnection(daemon.url.removeprefix("http://"), timeout=120)
    connection.request("DELETE", "/metrics")
    answer = connection.getresponse()
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")
    connection.close()
    connection.request("HEAD", "/metrics?name=1")
    answer = connection.getresponse()
    assert answer.status == 200 and int(answer.headers["Content-Length"]) > 100
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert answer.read() == b""


@pytest.mark.parametrize(
    "flags, says",
    [
        (["--metrics-listen", ":9400"], "':9400' is not HOST:PORT"),
        (["--metrics-listen", "localhost"], "'localhost' is not HOST:PORT"),
        (["--metrics-listen", "::1:9400"], "'::1:9400' is not HOST:PORT"),
        (["--metrics-listen", "localhost:65536"], "'localhost:65536' is not HOST:PORT"),
        (["--metrics-textfile", "/nowhere/at/all"], "cannot open the directory /nowhere/at/all"),
        (["--metrics-textfile", ""], "no directory is given"),
        (["--metrics-textfile", "/tmp", "--metrics-interval", "0"], "is not an interval"),
    ],
)
@pytest.mark.parametrize("detached", [False, True])
def test_the_daemon_does_not_start_without_the_metrics_it_was_asked_for(
    tmp_path, flags, says, detached
):
    command = [find_program("cgdebug-daemon"), "--socket", f"{tmp_path}/d.sock", *flags]
    done = subprocess.run(
        command if detached else [*command, "--foreground"], capture_output=True, text=True
    )
    assert done.returncode == 2 and says in done.stderr, done.stderr


def test_daemon_start_fails_without_the_metrics_that_were_typed(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [find_program("cgdebug-cli"), "--socket", str(tmp_path / "d.sock")]
            + ["daemon", "start", "--metrics-listen", f"127.0.0.1:{port}"],
            capture_output=True,
            text=True,
        )
    assert done.returncode == 4
    assert "Address already in use" in done.stderr


def test_a_port_that_another_has_is_not_replaced_by_that_of_another_address(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        flags = ["--metrics-listen", f"localhost:{other.getsockname()[1]}"]
        done = subprocess.run(
            [find_program("cgdebug-daemon"), "--foreground", "--socket", f"{tmp_path}/d.sock"]
            + ["--idle-timeout", "100ms", *flags],
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 2 and "in use" in done.stderr, done.stderr


def test_a_daemon_that_runs_already_is_not_taken_for_one_that_exports(own_daemon):
    daemon = own_daemon()
    done = subprocess.run(
        [find_program("cgdebug-daemon"), "--socket", daemon.socket]
        + ["--metrics-listen", "127.0.0.1:0"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and "cgdebug-cli daemon stop" in done.stderr


def test_the_environment_says_where_metrics_go(own_daemon, monkeypatch, tmp_path):
    monkeypatch.setenv("CGDEBUG_METRICS_LISTEN", "127.0.0.1:0")
    monkeypatch.setenv("CGDEBUG_METRICS_TEXTFILE", str(tmp_path))
    daemon = own_daemon()
    url = re.findall(r"metrics on (http://\S+)/metrics", daemon.log())[-1]
    assert (
        Page(fetch(url + "/metrics")).names == Page((tmp_path / "cgdebug.prom").read_text()).names
    )
    monkeypatch.setenv("CGDEBUG_METRICS_LISTEN", "9400")
    command = [find_program("cgdebug-daemon"), "--socket", daemon.socket]
    refused = subprocess.run(
        [*command, "--foreground"], capture_output=True, text=True, timeout=120
    )
    assert refused.returncode == 2 and "'9400' is not HOST:PORT" in refused.stderr
    monkeypatch.setenv("CGDEBUG_METRICS_LISTEN", "127.0.0.1:0")
    second = subprocess.run([*command, "--spawned"], capture_output=True, text=True, timeout=120)
    assert (second.returncode, second.stderr) == (0, ""), "of another rank that started one, too"


def test_doctor_says_whether_anybody_answers_with_metrics(own_daemon, monkeypatch):
    daemon = own_daemon("--metrics-listen", "127.0.0.1:0")
    where = re.findall(r"metrics on http://(\S+)/metrics", daemon.log())[-1]

    def metrics(place):
        monkeypatch.setenv("CGDEBUG_METRICS_LISTEN", place)
        words = [find_program("cgdebug-cli"), "--socket", daemon.socket, "doctor", "--json"]
        shown = subprocess.run(words, capture_output=True, text=True, timeout=120).stdout
        (check,) = [one for one in json.loads(shown)["checks"] if one["name"] == "metrics"]
        return check

    assert metrics(where)["level"] == "OK"
    with socket.create_server(("127.0.0.1", 0)) as unused:
        nobody = f"127.0.0.1:{unused.getsockname()[1]}"
    assert metrics(nobody)["level"] == "WARN" and "daemon logs" in metrics(nobody)["fix"]


def test_a_job_gets_a_daemon_also_if_the_port_of_the_metrics_is_in_use(own_daemon, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("CGDEBUG_METRICS_LISTEN", where)
        daemon = own_daemon("--spawned")
    assert re.search(f"no metrics: .*{where}.* in use", daemon.log())


def dashboard_queries():
    dashboard = json.loads(DASHBOARD.read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]


def test_the_dashboard_asks_only_for_metrics_that_exist(exporting, probe, promtool, tmp_path):
    daemon = exporting()
    p = probe(cgdebug.TensorRecord(2), name="x")
    p(torch.ones(2))
    page = page_with(daemon, lambda page: page.all("cgdebug_probe_replay"), "a probe is read")
    asked = {name for query in dashboard_queries() for name in re.findall(r"cgdebug_\w+", query)}
    assert len(asked) > 15
    assert asked <= page.names, asked - page.names
    rules = "groups:\n- name: dashboard\n  rules:\n"
    for number, query in enumerate(dashboard_queries()):
        if query.startswith("label_values("):
            continue
        expression = query.replace("$__rate_interval", "1m").replace("$__range", "1h")
        rules += f"  - record: dashboard:query:{number}\n    expr: {json.dumps(expression)}\n"
    (tmp_path / "rules.yml").write_text(rules)
    promtool("rules", str(tmp_path / "rules.yml"))


@pytest.fixture
def prometheus(tmp_path):
    """prometheus(daemon): asks a Prometheus server that reads its page; answers as it does."""
    program, started = find_prometheus("prometheus"), []

    def start(daemon):
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        page = daemon.url.removeprefix("http://")
        (tmp_path / "prometheus.yml").write_text(
            "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\n"
            f"scrape_configs: [{{job_name: c, static_configs: [{{targets: ['{page}']}}]}}]\n"
        )
        command = [program, f"--config.file={tmp_path}/prometheus.yml"]
        command += [f"--storage.tsdb.path={tmp_path}/data", f"--web.listen-address={address}"]
        with open(tmp_path / "prometheus.log", "w") as log:
            started.append(subprocess.Popen(command, stdout=log, stderr=log))

        def ask(query):
            words = urllib.parse.urlencode({"query": query})
            try:
                answer = fetch(f"http://{address}/api/v1/query?{words}")
            except urllib.error.URLError:
                return []
            return json.loads(answer)["data"]["result"]

        return ask

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_each_query_of_the_dashboard_has_an_answer_in_prometheus(exporting, prometheus, probe):
    ask = prometheus(exporting())
    p = probe(cgdebug.TensorStats(), name="x")
    for query in dashboard_queries():
        if query.startswith("label_values("):
            query = query.removeprefix("label_values(").rpartition(",")[0]
        for name, value in (("$session", ".*"), ("$probe", ".*"), ("$__range", "1m")):
            query = query.replace(name, value)
        query = query.replace("$__rate_interval", "5s")

        def answer(query=query):
            p(torch.tensor([1.0, float("nan"), float("inf")]))  # rates are of what changes
            return ask(query)

        wait_until(answer, f"Prometheus has an answer to {query}")


def test_every_metric_is_in_the_readme(exporting, probe):
    daemon = exporting()
    p = probe(cgdebug.TensorRecord(2), name="x")
    p(torch.ones(2))
    page = page_with(daemon, lambda page: page.all("cgdebug_probe_replay"), "a probe is read")
    table = (ROOT / "daemon" / "metrics" / "README.md").read_text()
    listed = set(re.findall(r"`(cgdebug_\w+)", table))
    step = {"cgdebug_session_step"}  # only where the job has steps
    assert page.names - step == listed - step


def test_of_a_thousand_probes_few_have_series_and_the_rest_is_counted(exporting, promtool):
    daemon = exporting("--metrics-probes", "20")
    job = Job("""
        probes = [CudaGraphTensorProbe(f"p{i}", [TensorStats()], mode="always") for i in range(1000)]
        x = torch.ones(4)
        for p in probes:
            p(x)
        print("ready"); sys.stdin.readline()
    """)
    job.line()
    page = page_with(
        daemon,
        lambda page: (
            page.of_job(job.pid)
            and page("cgdebug_session_probes", **page.of_job(job.pid)[0]) == 1000
        ),
        "all probes are known",
    )
    (me,) = page.of_job(job.pid)
    shown = [have["probe"] for have, _ in page.all("cgdebug_probe_nonfinite", **me)]
    assert shown == [f"p{i}" for i in range(20)]
    assert page("cgdebug_probes_left_out", **me) == 980
    promtool("metrics", text=page.text)
    job.go_on()
    job.finish()
