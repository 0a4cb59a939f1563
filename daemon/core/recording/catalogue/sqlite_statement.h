// sqlite_statement.h: a database and its statements, which close themselves.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "daemon/core/numerics/stats.h"

namespace cgdebug::recording {

struct Closer {
  void operator()(sqlite3* database) const { sqlite3_close(database); }
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};
using Database = std::unique_ptr<sqlite3, Closer>;

// One prepared statement, bound in the order of its parameters and run.
class Statement {
 public:
  Statement(sqlite3* database, const char* sql) {
    sqlite3_stmt* statement = nullptr;
    ok_ = sqlite3_prepare_v2(database, sql, -1, &statement, nullptr) == SQLITE_OK;
    statement_.reset(statement);
  }

  // Statistics take a place for each of their numbers; what is absent is null, and so is NaN.
  template <typename... Values>
  bool Run(const Values&... values) {
    if (!ok_) return false;
    sqlite3_reset(statement_.get());
    place_ = 0;
    (Bind(values), ...);
    return Next();
  }
  // The next row of what Run() began.
  bool Next() {
    const int result = sqlite3_step(statement_.get());
    has_row_ = result == SQLITE_ROW;
    return has_row_ || result == SQLITE_DONE;
  }
  bool has_row() const { return has_row_; }
  std::int64_t Integer(int column) const { return sqlite3_column_int64(statement_.get(), column); }
  std::string Text(int column) const {
    const auto* text = sqlite3_column_text(statement_.get(), column);
    return text == nullptr ? "" : reinterpret_cast<const char*>(text);
  }

 private:
  void Bind(double value) { sqlite3_bind_double(statement_.get(), ++place_, value); }
  void Bind(std::string_view value) {
    sqlite3_bind_text(statement_.get(), ++place_, value.data(), static_cast<int>(value.size()),
                      SQLITE_TRANSIENT);
  }
  void Bind(const std::string& value) { Bind(std::string_view(value)); }
  void Bind(std::nullopt_t) { sqlite3_bind_null(statement_.get(), ++place_); }
  template <typename Value>
  void Bind(const std::optional<Value>& value) {
    value ? Bind(*value) : Bind(std::nullopt);
  }
  void Bind(const std::optional<numerics::Stats>& stats) {
    numerics::Stats::ForEachNumber([&](const layout::Field&, auto member) {
      stats ? Bind((*stats).*member) : Bind(std::nullopt);
    });
  }
  template <typename Integer>
  requires std::is_integral_v<Integer>
  void Bind(Integer value) {
    sqlite3_bind_int64(statement_.get(), ++place_, static_cast<sqlite3_int64>(value));
  }

  std::unique_ptr<sqlite3_stmt, Closer> statement_;
  bool ok_ = false;
  int place_ = 0;  // of the last value bound
  bool has_row_ = false;
};

}  // namespace cgdebug::recording
