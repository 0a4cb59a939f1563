__version__: str  # CMake writes the module, with the version of CMakeLists.txt
