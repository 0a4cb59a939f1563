// gil.h: the interpreter's lock, also while the interpreter ends.
#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

namespace cgdebug::python {

inline bool IsInterpreterEnding() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

// Releases the interpreter's lock while it exists.
//
// Instead of pybind11::gil_scoped_release, because a thread that takes the lock while the
// interpreter ends is unwound by force. Its destructors would use Python objects without the lock,
// and those that allow no exception would end the job with std::terminate. So the thread that ends
// the interpreter keeps the lock, and any other thread waits here for the end of the process, as
// Python 3.14 does.
class WithoutGil {
 public:
  WithoutGil() : thread_(IsInterpreterEnding() ? nullptr : PyEval_SaveThread()) {}
  ~WithoutGil() {
    if (thread_ == nullptr) return;
    if (IsInterpreterEnding()) WaitForTheEnd();
    try {
      PyEval_RestoreThread(thread_);
    } catch (...) {
      // The interpreter began to end meanwhile, and pthread_exit() unwinds this thread.
      WaitForTheEnd();
    }
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  [[noreturn]] static void WaitForTheEnd() {
    while (true) pause();
  }

  PyThreadState* thread_;
};

}  // namespace cgdebug::python
