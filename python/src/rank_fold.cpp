#include "python/src/rank_fold.h"

#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/analysis/ranks/ranks.h"
#include "client/analysis/ranks/ranks_report.h"
#include "client/source/source.h"
#include "python/src/gil.h"
#include "python/src/recording_error.h"

namespace py = pybind11;

namespace cgdebug::python {
namespace {

using namespace py::literals;

// analysis::RankFold with its options. Thread: one at a time.
class Fold {
 public:
  Fold(const std::vector<std::string>& probes, const std::vector<std::string>& replicated,
       double tolerance, bool bitwise)
      : options_(OptionsOf(probes, replicated, tolerance, bitwise)), fold_(options_) {}

  void Add(const std::string& path) {
    Checked([&]() -> Result<void> {
      const WithoutGil release;
      const Result<std::unique_ptr<source::Source>> source = source::Open(path);
      if (!source.ok()) return source.error();
      return fold_.Add(**source, path);
    }());
  }
  void AddUnreadable(const std::string& why) { fold_.AddUnreadable(why); }
  py::bytes Encode() const { return fold_.Encode(); }
  void Merge(const std::string& encoded) {
    Checked([&]() -> Result<void> {
      const WithoutGil release;
      const Result<analysis::RankFold> other = analysis::RankFold::Decode(encoded, options_);
      if (!other.ok()) return other.error();
      fold_.Merge(*other);
      return {};
    }());
  }
  // (json, text)
  std::pair<std::string, std::string> Finish() const {
    const WithoutGil release;
    const analysis::RanksReport report = fold_.Finish();
    return {Dump(analysis::RanksJson(report, options_), /*indented=*/false),
            analysis::RanksAnswer(report, options_).Text()};
  }

 private:
  static analysis::RanksOptions OptionsOf(const std::vector<std::string>& probes,
                                          const std::vector<std::string>& replicated,
                                          double tolerance, bool bitwise) {
    analysis::RanksOptions options;
    options.scope.probes = Checked(Selector::Parse(probes));
    options.replicated = Checked(Selector::Parse(replicated));
    options.has_replicated = !replicated.empty();
    options.tolerance = tolerance;
    options.bitwise = bitwise;
    auto opened = std::make_shared<std::map<std::string, std::unique_ptr<source::Source>>>();
    options.open = [opened](const std::string& path) -> source::Source* {
      const auto [place, is_new] = opened->try_emplace(path);
      if (is_new) {
        Result<std::unique_ptr<source::Source>> source = source::Open(path);
        if (source.ok()) place->second = *std::move(source);
      }
      return place->second.get();
    };
    return options;
  }

  analysis::RanksOptions options_;
  analysis::RankFold fold_;
};

}  // namespace

void RegisterRankFold(py::module_& module) {
  py::class_<Fold>(module, "RankFold")
      .def(py::init<const std::vector<std::string>&, const std::vector<std::string>&, double,
                    bool>(),
           "probes"_a, "replicated"_a, "tolerance"_a, "bitwise"_a)
      .def("add", &Fold::Add, "path"_a)
      .def("add_unreadable", &Fold::AddUnreadable, "why"_a)
      .def("encode", &Fold::Encode)
      .def("merge", &Fold::Merge, "encoded"_a)
      .def("finish", &Fold::Finish);
}

}  // namespace cgdebug::python
