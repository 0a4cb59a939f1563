#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "libprobe/capture/graph/capture_nodes.h"

namespace cgdebug::capture {
namespace {

std::string Demangled(const std::string& symbol) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status), &std::free);
  return status == 0 && text != nullptr ? std::string(text.get()) : symbol;
}

}  // namespace

bool IsOwnKernel(const std::string& symbol) { return symbol.rfind("_ZN7cgdebug7capture", 0) == 0; }

std::string ShortKernelName(const std::string& symbol) {
  const std::string full = Demangled(symbol);
  // "void (anonymous namespace)::name<...>(...)": the last part outside of all brackets.
  std::string name;
  int depth = 0;
  for (std::size_t i = 0; i < full.size(); ++i) {
    const char c = full[i];
    if (c == '<' || c == '(') {
      ++depth;
    } else if (c == '>' || c == ')') {
      --depth;
    } else if (depth == 0 && (c == ' ' || c == ':')) {
      // What comes behind the parameters, as in "f(int) [clone .1]", is no name.
      if (c == ' ' && !name.empty() && full[i - 1] == ')') break;
      name.clear();
    } else if (depth == 0) {
      name += c;
    }
  }
  if (name.empty()) name = symbol;
  for (char& c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte <= ' ' || byte >= 127 || c == ',' || c == '*') c = '_';
  }
  if (name.size() > kMostNodeName) name.resize(kMostNodeName);
  return name;
}

}  // namespace cgdebug::capture
