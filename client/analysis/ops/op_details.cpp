#include "client/analysis/ops/op_details.h"

#include <fmt/format.h>

#include "client/analysis/ops/op_log.h"

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

std::vector<std::pair<std::string, std::string>> OpFacts(const source::Slot& slot) {
  const OpText* const text = slot.op.row();
  if (!text) return {};
  const OpDetails details = ParseOpDetails(slot.details);
  std::vector<std::pair<std::string, std::string>> facts;
  const auto add = [&](const std::string& word, const std::string& fact) {
    if (!fact.empty()) facts.emplace_back(word, fact);
  };
  const bool is_input = text->op == "input";
  add("op", fmt::format("#{} {}{}", text->number, text->op,
                        is_input ? "" : fmt::format("({})", details.arguments)));
  if (!is_input) {
    std::string reads;
    for (const std::uint32_t number : text->inputs) reads += fmt::format("#{} ", number);
    if (!text->is_covered) reads += "? ";
    add("reads", reads.substr(0, reads.empty() ? 0 : reads.size() - 1));
  }
  const bool has_code = !slot.site.empty() && !details.code.empty();
  add("line", slot.site + (has_code ? ": " + details.code : ""));
  for (const std::string& frame : details.stack) add("called by", frame);
  for (const std::string& source : details.sources) add("fused of", source);
  for (const std::string& view : details.views) add("view", view);
  add("region", details.region);
  add("placements", details.placements);
  for (const auto& [name, value] : details.columns) add(name, value);
  return facts;
}

}  // namespace cgdebug::analysis
