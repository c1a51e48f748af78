/* SPDX-License-Identifier: Apache-2.0 */
#include "fuzz/tcp_target_model.h"

#include <string.h>

#include <lanewise/lanewise.h>

#include "drivers/tcp/checksum.h"
#include "fuzz/input.h"
#include "meta/descriptor.h"

const struct zone zones[ZONES] = {
	{0, 2 * PAGE, LW_ACCESS_REMOTE},
	{2 * PAGE, 3 * PAGE, LW_ACCESS_REMOTE}, /* beside it: a range may cross the seam */
	/* page 3 is inaccessible */
	{4 * PAGE, 5 * PAGE, LW_ACCESS_REMOTE_READ},
	{5 * PAGE, 6 * PAGE, LW_ACCESS_REMOTE_WRITE},
	{6 * PAGE, 7 * PAGE, LW_ACCESS_LOCAL},
	/* page 7 is not registered */
	{8 * PAGE + 100, 8 * PAGE + 3000, LW_ACCESS_REMOTE},
	/* page 9 is inaccessible */
	/* larger than the staging area, than a small socket buffer, and than what is summed ahead */
	{10 * PAGE, PAGES *PAGE, LW_ACCESS_REMOTE},
};

static bool offered(const struct model *model, uint64_t addr, uint64_t size, uint32_t access)
{
	uint64_t at = addr - BASE, end;

	if (addr < BASE || at >= SPAN || size == 0 || size > SPAN - at)
		return false;
	end = at + size;
	for (size_t i = 0; i < (model->revoked ? LARGE : ZONES) && at < end; i++)
		if (at >= zones[i].begin && at < zones[i].end && (zones[i].access & access) != 0)
			at = zones[i].end;
	return at >= end;
}

bool model_has_sums(const struct dialog *dialog)
{
	return (dialog->options & LW_TCP_CHECKSUM) != 0;
}

uint32_t model_sum(const void *bytes, size_t length)
{
	return tcp_checksum_wire(tcp_checksum_add(TCP_SUM_START, bytes, length));
}

static void answer(struct dialog *dialog, const void *bytes, size_t length)
{
	FUZZ_CHECK(dialog->due + length <= ANSWERS_ROOM, "the script asks for more than the model has room for");
	memcpy(dialog->answers + dialog->due, bytes, length);
	dialog->due += length;
}

void model_status(struct dialog *dialog, enum tcp_status code)
{
	uint64_t word = tcp_status_word(code);

	answer(dialog, &word, sizeof(word));
}

static void model_refuse(struct dialog *dialog, enum tcp_status code, bool status)
{
	dialog->refused = true;
	if (status)
		model_status(dialog, code);
}

static void model_welcome(struct model *model, struct dialog *dialog)
{
	struct dialog *other = &model->dialogs[dialog == model->dialogs];
	uint64_t token = tcp_header_get(dialog->about.hello).size;
	uint8_t ahead = (uint8_t)(other->token - token);

	dialog->stage = SERVING;
	dialog->token = token;
	if (token != 0 && other->token != 0 && !other->ended && token >> 8 == other->token >> 8) {
		if (ahead > 0 && ahead < 128) {
			model_refuse(dialog, TCP_STATUS_OK, false);
			return;
		}
		other->ended = true;
	}
	model_status(dialog, TCP_STATUS_OK);
}

static void model_hello(struct model *model, struct dialog *dialog)
{
	static const unsigned char unknown[TCP_NONCE_BYTES + TCP_PROOF_BYTES];
	struct tcp_header header = tcp_header_get(dialog->part);

	memcpy(dialog->about.hello, dialog->part, TCP_HEADER_BYTES);
	if (header.addr != model->incarnation) {
		model_refuse(dialog, TCP_STATUS_INCARNATION, true);
		return;
	}
	if (header.options != model->options) {
		model_refuse(dialog, TCP_STATUS_OPTIONS, true);
		return;
	}
	dialog->options = header.options;
	if ((header.options & LW_TCP_AUTH) == 0) {
		model_welcome(model, dialog);
		return;
	}
	dialog->stage = PROVING;
	memcpy(dialog->about.initiator, dialog->part + TCP_HEADER_BYTES, TCP_NONCE_BYTES);
	model_status(dialog, TCP_STATUS_CHALLENGE);
	dialog->challenge = dialog->due;
	dialog->learned = 0;
	answer(dialog, unknown, sizeof(unknown));
}

/* Nobody proves what it has not read. */
static void model_proof(struct model *model, struct dialog *dialog)
{
	unsigned char right[TCP_PROOF_BYTES];

	tcp_auth_prove(SECRET, TCP_INITIATOR, &dialog->about, right);
	if (dialog->learned == TCP_NONCE_BYTES && memcmp(dialog->part, right, sizeof(right)) == 0)
		model_welcome(model, dialog);
	else
		model_refuse(dialog, TCP_STATUS_UNAUTHORIZED, true);
}

void model_learn(struct dialog *dialog, const unsigned char *bytes, size_t at, size_t length)
{
	if (dialog->stage != PROVING)
		return;
	for (size_t i = 0; i < length && dialog->learned < TCP_NONCE_BYTES; i++) {
		if (at + i != dialog->challenge + dialog->learned)
			continue;
		dialog->answers[at + i] = bytes[i];
		dialog->about.target[dialog->learned++] = bytes[i];
		if (dialog->learned == TCP_NONCE_BYTES)
			tcp_auth_prove(SECRET, TCP_TARGET, &dialog->about,
				       dialog->answers + dialog->challenge + TCP_NONCE_BYTES);
	}
}

static void model_request(struct model *model, struct dialog *dialog)
{
	struct tcp_header header = tcp_header_get(dialog->part);
	bool v2 = header.op >= TCP_OP_V2;
	uint8_t op = header.op % TCP_OP_V2;
	uint32_t sum;

	if (dialog->stage != SERVING && model->options != 0) {
		model_refuse(dialog, TCP_STATUS_OPTIONS, v2);
		return;
	}
	memcpy(&sum, dialog->part + TCP_HEADER_SUM, sizeof(sum));
	if (model_has_sums(dialog) && (!v2 || sum != model_sum(dialog->part, TCP_HEADER_SUM))) {
		model_refuse(dialog, TCP_STATUS_CORRUPT, v2);
		return;
	}
	if (!offered(model, header.addr, header.size,
		     op == TCP_OP_WRITE ? LW_ACCESS_REMOTE_WRITE : LW_ACCESS_REMOTE_READ)) {
		model_refuse(dialog, TCP_STATUS_REFUSED, v2);
		return;
	}
	if (op == TCP_OP_WRITE) {
		dialog->dest = header.addr - BASE;
		dialog->left = header.size;
		dialog->confirm = v2;
		dialog->sum = TCP_SUM_START;
		return;
	}
	if (v2)
		model_status(dialog, TCP_STATUS_OK);
	answer(dialog, model->memory + (header.addr - BASE), header.size);
	sum = model_has_sums(dialog) ? model_sum(model->memory + (header.addr - BASE), header.size) : 0;
	answer(dialog, &sum, model_has_sums(dialog) ? sizeof(sum) : 0);
}

void model_change(struct model *model, uint64_t from, uint64_t to)
{
	if (from < model->changed)
		model->changed = from;
	if (to > model->changed_end)
		model->changed_end = to;
}

static void model_store(struct model *model, struct dialog *dialog, const unsigned char *bytes, size_t length)
{
	memcpy(model->memory + dialog->dest, bytes, length);
	model_change(model, dialog->dest, dialog->dest + length);
	dialog->dest += length;
	dialog->left -= length;
	if (model_has_sums(dialog))
		dialog->sum = tcp_checksum_add(dialog->sum, bytes, length);
	dialog->sum_due = dialog->left == 0 && model_has_sums(dialog);
	if (dialog->left == 0 && !dialog->sum_due && dialog->confirm)
		model_status(dialog, TCP_STATUS_OK);
}

/* How many bytes have to be there before the next thing happens. */
static size_t model_needs(const struct dialog *dialog)
{
	if (dialog->sum_due)
		return TCP_SUM_BYTES;
	if (dialog->stage == PROVING)
		return TCP_PROOF_BYTES;
	if (dialog->have < TCP_HEADER_BYTES || dialog->part[16] != (TCP_OP_V2 | TCP_OP_HELLO) ||
	    (dialog->part[17] & LW_TCP_AUTH) == 0)
		return TCP_HEADER_BYTES;
	return TCP_HEADER_BYTES + TCP_NONCE_BYTES;
}

static void model_act(struct model *model, struct dialog *dialog)
{
	uint32_t sum;

	dialog->have = 0;
	if (dialog->sum_due) {
		memcpy(&sum, dialog->part, sizeof(sum));
		dialog->sum_due = false;
		if (sum == tcp_checksum_wire(dialog->sum))
			model_status(dialog, TCP_STATUS_OK);
		else
			model_refuse(dialog, TCP_STATUS_CORRUPT, true);
	} else if (dialog->stage == PROVING) {
		model_proof(model, dialog);
	} else if (dialog->part[16] == (TCP_OP_V2 | TCP_OP_HELLO)) {
		model_hello(model, dialog);
	} else {
		model_request(model, dialog);
	}
}

void model_feed(struct model *model, struct dialog *dialog, const unsigned char *bytes, size_t length)
{
	size_t here;

	for (; length > 0 && !dialog->refused && !dialog->ended; bytes += here, length -= here) {
		if (dialog->left != 0) {
			here = dialog->left < length ? dialog->left : length;
			model_store(model, dialog, bytes, here);
			continue;
		}
		here = model_needs(dialog) - dialog->have;
		here = here < length ? here : length;
		memcpy(dialog->part + dialog->have, bytes, here);
		dialog->have += here;
		if (dialog->have == model_needs(dialog))
			model_act(model, dialog);
	}
}
