// record.h: answers requests about recordings.
#pragma once

#include "daemon/serve/answer.h"
#include "daemon/serve/model.h"
#include "proto/control.pb.h"

namespace cgdebug::serve {

void AnswerRecordList(const Model& model, Answer* answer);
// These wait for the ingest thread or for a recording to be written.
// Thread: any.
void AnswerRecordStart(const v1::RecordStartRequest& request, const Model& model, Answer* answer);
void AnswerRecordStop(const v1::RecordStopRequest& request, const Model& model, Answer* answer);
void AnswerSync(const Model& model, Answer* answer);
void AnswerFreeze(const v1::FreezeRequest& request, const Model& model, Answer* answer);

}  // namespace cgdebug::serve
