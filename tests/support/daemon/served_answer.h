// served_answer.h: an answer of the daemon as the message that its client reads.
#pragma once

#include <gtest/gtest.h>

#include "daemon/serve/answer.h"

namespace cgdebug::test {

inline v1::Response MessageOf(const serve::Answer& answer) {
  v1::Response response;
  EXPECT_TRUE(response.ParseFromString(answer.Body()));
  return response;
}

}  // namespace cgdebug::test
