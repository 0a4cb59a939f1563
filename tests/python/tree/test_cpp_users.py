"""A C++ program outside the tree, built with what an install gives."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from conftest import ROOT, find_program

CONSUMER = ROOT / "tests/consumer"
SAID = "1 record, 0.1.0\n"


def run(*words, **options):
    finished = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=300, **options
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def config(*flags):
    return run(find_program("cgdebug-cli"), "config", *flags).strip()


def compiler():
    found = shutil.which("g++") or shutil.which("c++")
    if found is None:
        pytest.skip("no C++ compiler here")
    return found


def build_with_cmake(prefix, build, *options):
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("no cmake here")
    environment = {**os.environ, "CXX": compiler()}
    flags = [f"-DCMAKE_PREFIX_PATH={prefix}", *options]
    run(cmake, "-S", CONSUMER, "-B", build, *flags, env=environment)
    run(cmake, "--build", build)
    return build / "consumer"


def build_with_flags(flags, program):
    run(compiler(), "-std=c++20", CONSUMER / "main.cpp", *flags, "-o", program)
    return program


def test_the_flags_of_config_compile_and_link_a_program(tmp_path):
    flags = config("--cflags", "--libs").split()
    assert run(build_with_flags(flags, tmp_path / "outside")) == SAID


def test_find_package_finds_what_config_names(tmp_path):
    assert run(build_with_cmake(config("--prefix"), tmp_path / "build")) == SAID


def assert_headers_stay_inside(folder):
    """They include their own, and the messages that protoc makes."""
    headers = list((folder / "cgdebug").rglob("*.h"))
    for header in headers:
        for name in re.findall(r'#include "(.*)"', header.read_text(encoding="utf-8")):
            assert name.startswith(("cgdebug/", "proto/control")), f"{header}: {name}"
            assert (folder / name).exists(), f"{header}: {name}"
    assert headers


def test_headers_include_nothing_of_the_tree():
    assert_headers_stay_inside(pathlib.Path(config("--prefix")) / "include/cgdebug")


def test_python_m_cgdebug_names_the_prefix_of_its_own_package():
    import cgdebug

    prefix = run(sys.executable, "-m", "cgdebug", "config", "--prefix").strip()
    assert prefix == os.path.dirname(cgdebug.__file__)
    assert f"-I{prefix}/include/cgdebug" in run(
        sys.executable, "-m", "cgdebug", "config", "--cflags"
    )


def test_cmake_install_gives_libraries_headers_package_and_manual(tmp_path, daemon):
    """Only from a build tree: a wheel has its own layout, which config finds."""
    build = os.path.dirname(os.path.dirname(find_program("cgdebug-cli")))
    if not os.path.exists(f"{build}/CMakeCache.txt") or shutil.which("cmake") is None:
        pytest.skip("no build tree here")
    prefix = tmp_path / "prefix"
    run("cmake", "--install", build, "--prefix", prefix)
    assert (prefix / "share/man/man1/cgdebug-cli.1").read_text().startswith(".TH CGDEBUG")
    assert run(prefix / "bin/cgdebug-cli", "config", "--prefix").strip() == str(prefix)
    assert_headers_stay_inside(prefix / "include/cgdebug")
    # Both public headers in one file, linked with both libraries.
    program = build_with_cmake(prefix, tmp_path / "build", "-DWITH_CLIENT=ON")
    assert run(program, daemon.socket) == SAID + "mean 2.5 of 16 bytes\n"
    package_config = shutil.which("pkg-config")
    if package_config:
        environment = {**os.environ, "PKG_CONFIG_PATH": str(prefix / "lib/pkgconfig")}
        flags = run(package_config, "--cflags", "--libs", "cgdebug", env=environment).split()
        assert run(build_with_flags(flags, tmp_path / "outside")) == SAID


def test_a_program_without_a_gpu_learns_how_to_say_where_its_tensor_is(tmp_path):
    source = tmp_path / "host.cpp"
    source.write_text(
        """#include <cgdebug/probe.h>
        #include <cstdio>
        int main() {
          cgdebug::ProbeOptions options;
          options.record = cgdebug::RecordAction{};
          options.mode = cgdebug::ProbeMode::kAlways;
          cgdebug::Probe probe("host", options);
          float values[2] = {1, 2};
          try {
            probe.Observe({.data = values, .dtype = cgdebug::Dtype::kFloat32, .shape = {2}});
          } catch (const cgdebug::ProbeError& error) {
            std::puts(error.what());
          }
        }"""
    )
    flags = config("--cflags", "--libs").split()
    run(compiler(), "-std=c++20", source, *flags, "-o", tmp_path / "host")
    said = run(tmp_path / "host", env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "CGDEBUG": "0"})
    assert ".device_type = cgdebug::DeviceType::kCpu" in said


def test_the_manual_shows_the_same_lines():
    text = (ROOT / "client/docs/probes.md").read_text(encoding="utf-8")
    for line in ("$(cgdebug-cli config --cflags --libs)", "find_package(cgdebug", "cgdebug::probe"):
        assert line in text
