// get.h: answers requests for one tensor.
#pragma once

#include "daemon/serve/answer.h"
#include "daemon/serve/model.h"
#include "proto/control.pb.h"

namespace cgdebug::serve {

// False, only without `may_wait`: a ring may hold the replay, so the ingest thread must be asked.
// Sets `payload` if raw frames follow the answer.
bool AnswerGet(const v1::GetRequest& request, const Model& model, bool may_wait, Answer* answer,
               pipeline::PayloadPtr* payload);

}  // namespace cgdebug::serve
