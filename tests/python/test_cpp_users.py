"""A C++ program outside the tree, built with what an install gives."""

import os
import shutil
import subprocess
import sys

import pytest

from conftest import ROOT, find_program

MAIN = """
#include <cgdebug/probe.h>

#include <cstdio>

int main() {
  cgdebug::ProbeOptions options;
  options.mode = cgdebug::ProbeMode::kAlways;
  options.record = cgdebug::RecordAction{};
  cgdebug::Probe probe("layer0.out", options);
  float values[4] = {1, 2, 3, 4};
  cgdebug::TensorRef tensor;
  tensor.data = values;
  tensor.dtype = cgdebug::Dtype::kFloat32;
  tensor.shape = {2, 2};
  tensor.device_type = cgdebug::DeviceType::kCpu;
  probe.Observe(tensor);
  std::printf("%zu record, %s\\n", probe.Records().size(), cgdebug::Version().c_str());
}
"""
PROJECT = """
cmake_minimum_required(VERSION 3.22)
project(outside LANGUAGES CXX)
find_package(cgdebug 0.1 REQUIRED)
add_executable(outside main.cpp)
target_link_libraries(outside PRIVATE cgdebug::probe)
"""
SAID = "1 record, 0.1.0\n"


def run(*words, **options):
    finished = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=300, **options
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def config(*flags):
    return run(find_program("cgdebug-cli"), "config", *flags).strip()


@pytest.fixture
def project(tmp_path):
    (tmp_path / "main.cpp").write_text(MAIN, encoding="utf-8")
    (tmp_path / "CMakeLists.txt").write_text(PROJECT, encoding="utf-8")
    return tmp_path


def compiler():
    found = shutil.which("g++") or shutil.which("c++")
    if found is None:
        pytest.skip("no C++ compiler here")
    return found


def build_with_cmake(project, prefix, build, program):
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("no cmake here")
    environment = {**os.environ, "CXX": compiler()}
    run(*(cmake, "-S", project, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}"), env=environment)
    run(cmake, "--build", build)
    return build / program


def test_the_flags_of_config_compile_and_link_a_program(project):
    flags = config("--cflags", "--libs").split()
    run(compiler(), "-std=c++20", "main.cpp", *flags, "-o", "outside", cwd=project)
    assert run(project / "outside") == SAID


def test_find_package_finds_what_config_names(project):
    assert run(build_with_cmake(project, config("--prefix"), project / "build", "outside")) == SAID


def test_python_m_cgdebug_names_the_prefix_of_its_own_package():
    import cgdebug

    prefix = run(sys.executable, "-m", "cgdebug", "config", "--prefix").strip()
    assert prefix == os.path.dirname(cgdebug.__file__)
    assert f"-I{prefix}/include/cgdebug" in run(
        sys.executable, "-m", "cgdebug", "config", "--cflags"
    )


def test_cmake_install_gives_libraries_headers_package_and_manual(project, daemon):
    """Only from a build tree: a wheel has its own layout, which config finds."""
    build = os.path.dirname(os.path.dirname(find_program("cgdebug-cli")))
    if not os.path.exists(f"{build}/CMakeCache.txt") or shutil.which("cmake") is None:
        pytest.skip("no build tree here")
    prefix = project / "prefix"
    run("cmake", "--install", build, "--prefix", prefix)
    assert (prefix / "share/man/man1/cgdebug-cli.1").read_text().startswith(".TH CGDEBUG")
    assert run(prefix / "bin/cgdebug-cli", "config", "--prefix").strip() == str(prefix)
    assert run(build_with_cmake(project, prefix, project / "build", "outside")) == SAID
    # Both public headers in one file, linked with both libraries.
    consumer = ROOT / "tests/consumer"
    program = build_with_cmake(consumer, prefix, project / "consumer", "consumer")
    assert run(program, daemon.socket) == "mean 2.5 of 16 bytes\n"
    package_config = shutil.which("pkg-config")
    if package_config:
        environment = {**os.environ, "PKG_CONFIG_PATH": str(prefix / "lib/pkgconfig")}
        flags = run(package_config, "--cflags", "--libs", "cgdebug", env=environment).split()
        run(compiler(), "-std=c++20", "main.cpp", *flags, "-o", "outside", cwd=project)
        assert run(project / "outside") == SAID


def test_the_readme_shows_the_same_lines():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for line in ("$(cgdebug-cli config --cflags --libs)", "find_package(cgdebug", "cgdebug::probe"):
        assert line in text
