/* SPDX-License-Identifier: Apache-2.0 */
/* Beside Mooncake's C header: what its C++ class has and its C header lacks, in the same style, and why something
 * failed. Handles, codes and rules are those of transfer_engine_c.h, ours or Mooncake's own. */
#ifndef TRANSFER_ENGINE_EXT
#define TRANSFER_ENGINE_EXT

#include "transfer_engine_c.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Batches ---- */

/* The state of a batch as a whole, without polling its tasks: WAITING while one has not ended; COMPLETED when all are
 * (and of an empty batch); else FAILED. transferred_bytes: of the tasks that completed; 0 while WAITING. It follows the
 * end of the last task by a moment. 0; 1. Never blocks. */
int getBatchTransferStatus(transfer_engine_t engine, batch_id_t batch_id, struct transfer_status *status);

/* The same once no task is WAITING. 0; 1; 4 tasks are under way still after timeout_ms. Blocks for at most timeout_ms.
 */
int waitBatchTransfer(transfer_engine_t engine, batch_id_t batch_id, uint32_t timeout_ms,
		      struct transfer_status *status);

/* Asks for the end of the batch's tasks: what no byte was sent for ends CANCELED soon, the rest ends either way within
 * 1 s. 0 asked; 1; 2 too many cancels at once, call again. Never blocks. */
int cancelBatchTransfer(transfer_engine_t engine, batch_id_t batch_id);

/* A sentence on how a task ended that names the peer, the range and the cause. 0; 1 as getTransferStatus, or buf_len is
 * too small (then buf_out holds what fits). Never blocks. */
int getTransferReason(transfer_engine_t engine, batch_id_t batch_id, size_t task_id, char *buf_out, size_t buf_len);

/* ---- Peers ---- */

/* Asks whether the engine behind a segment lives. 0 it does; 1 it does not answer; -200 no such segment; -1 no such
 * engine. Blocks for at most the setting handshake_timeout_ms. */
int probePeerAliveByID(transfer_engine_t engine, segment_id_t segment_id);

/* genNotifyInEngine by the name of a segment, which is opened for it if it is not known yet. Codes as there. */
int sendNotifyByName(transfer_engine_t engine, const char *segment_name, notify_msg_t notify_msg);

/* syncSegmentCache for one name. 0; -1 the name is not known or its peer can't be reached. */
int syncSegmentCacheByName(transfer_engine_t engine, const char *segment_name);

/* What is known of a segment, as a JSON object: {"buffers":[{"access","addr","length"}],"data","driver","handshake",
 * "incarnation","name"}. NULL: no such engine or segment, no memory. Free it with freeTransferEngineString. */
char *getSegmentDescString(transfer_engine_t engine, segment_id_t segment_id);

/* ---- This engine ---- */

/* The priority matrix, {"<location>":[["<preferred NIC>",...],["<other NIC>",...]],...}, null when empty. NULL: no such
 * engine, no memory. Free it with freeTransferEngineString. Reads some hundred small files under /sys. */
char *getLocalTopologyString(transfer_engine_t engine);

/* Port of the own handshake; 0: no such engine. */
int getRpcPort(transfer_engine_t engine);

/* ---- Errors and texts ---- */

/* What the last failing call of this thread had to say: object, cause, remedy. "" when none failed yet. Valid until the
 * next failing call of this thread. */
const char *getTransferEngineError(void);

/* Frees a text of this header. NULL is let pass. */
void freeTransferEngineString(char *text);

#ifdef __cplusplus
}
#endif
#endif
