# CMake writes the module.
__version__: str  # of CMakeLists.txt
OP_TORCH: str  # the oldest torch that the op loads into, such as "2.10"; empty without an op
