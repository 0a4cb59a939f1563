#include "client/analysis/op_details.h"

namespace cgdebug::analysis {
namespace {

std::string TextOf(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::vector<std::string> TextsOf(const Json& object, const char* key) {
  std::vector<std::string> texts;
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array()) return texts;
  for (const Json& one : *found) {
    if (one.is_string()) texts.push_back(one.get<std::string>());
  }
  return texts;
}

}  // namespace

Json OpDetailsJson(std::string_view text) {
  if (text.empty()) return nullptr;
  Json object = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return object.is_object() ? object : Json(nullptr);
}

OpDetails ParseOpDetails(std::string_view text) {
  const Json object = OpDetailsJson(text);
  if (!object.is_object()) return {};
  OpDetails details{.arguments = TextOf(object, "args"),
                    .code = TextOf(object, "code"),
                    .stack = TextsOf(object, "stack"),
                    .views = TextsOf(object, "views"),
                    .sources = TextsOf(object, "from"),
                    .region = TextOf(object, "region"),
                    .placements = TextOf(object, "placements")};
  const auto columns = object.find("columns");
  if (columns != object.end() && columns->is_object()) {
    for (const auto& [name, value] : columns->items()) {
      details.columns.emplace_back(name,
                                   value.is_string() ? value.get<std::string>() : value.dump());
    }
  }
  return details;
}

}  // namespace cgdebug::analysis
