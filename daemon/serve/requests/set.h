// set.h: answers requests that change probes while their jobs run.
#pragma once

#include "daemon/serve/answer.h"
#include "daemon/serve/model.h"
#include "proto/control.pb.h"

namespace cgdebug::serve {

void AnswerSet(const v1::SetRequest& request, const Model& model, Answer* answer);

}  // namespace cgdebug::serve
