/* SPDX-License-Identifier: Apache-2.0 */
/* The small documents from outside: contacts, which stores hold, notes, and what joins queue pairs, which peers send.
 * Whatever comes in, what is accepted keeps the reader's promises, and written and read again it is the same. The input
 * is the document.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz/input.h"
#include "meta/contact.h"
#include "meta/handshake.h"
#include "meta/note.h"

#define HEAD 16

static void try_contact(const char *data, size_t size)
{
	struct lw_contact first, second;
	char *text = NULL, why[200];
	size_t length = 0;
	int ret;

	memset(why, 'x', sizeof(why));
	ret = lw_contact_decode(data, size, &first, why, sizeof(why));
	if (ret != 0) {
		FUZZ_CHECK(ret == -EPROTO, "error %d", ret);
		FUZZ_CHECK(memchr(why, '\0', sizeof(why)) != NULL && why[0] != '\0', "no reason");
		return;
	}
	FUZZ_CHECK(first.where.port != 0 && first.where.host[0] != '\0', "no port or host");
	FUZZ_CHECK(lw_contact_encode(&first, &text, &length) == 0 && strlen(text) == length, "can't be written");
	ret = lw_contact_decode(text, length, &second, why, sizeof(why));
	FUZZ_CHECK(ret == 0, "what was written is refused: %s: %s", why, text);
	FUZZ_CHECK(strcmp(first.where.host, second.where.host) == 0 && first.where.port == second.where.port &&
			   first.incarnation == second.incarnation,
		   "another contact");
	free(text);
}

static void try_note(const char *data, size_t size)
{
	struct lw_note *first, *second;
	char *body = NULL;
	int ret = lw_note_decode(data, size, HEAD, &first);

	if (ret != 0) {
		FUZZ_CHECK(ret == -EPROTO, "error %d", ret);
		return;
	}
	FUZZ_CHECK(first->name[first->name_size] == '\0' && first->text[first->text_size] == '\0', "no NUL");
	FUZZ_CHECK(first->name_size + first->text_size <= size, "%zu bytes from %zu",
		   first->name_size + first->text_size, size);
	FUZZ_CHECK(lw_note_encode(first, &body) == 0, "can't be written");
	FUZZ_CHECK(lw_note_decode(body, strlen(body), 0, &second) == 0, "what was written is refused: %s", body);
	FUZZ_CHECK(first->name_size == second->name_size && first->text_size == second->text_size &&
			   memcmp(first->name, second->name, first->name_size) == 0 &&
			   memcmp(first->text, second->text, first->text_size) == 0,
		   "another note: %s", body);
	free(body);
	free(second);
	free((char *)first - HEAD);
}

static bool same_handshake(const struct lw_handshake *a, const struct lw_handshake *b)
{
	return strcmp(a->local_path, b->local_path) == 0 && strcmp(a->peer_path, b->peer_path) == 0 &&
	       strcmp(a->reply, b->reply) == 0 && a->has_gid == b->has_gid &&
	       memcmp(a->gid, b->gid, sizeof(a->gid)) == 0 && a->lid == b->lid && a->has_ready == b->has_ready &&
	       a->ready == b->ready && a->qp_count == b->qp_count && memcmp(a->qp, b->qp, sizeof(a->qp)) == 0 &&
	       a->incarnation == b->incarnation && a->meant == b->meant && a->over == b->over;
}

static void try_handshake(const char *data, size_t size)
{
	struct lw_handshake first, second;
	char *text = NULL, why[200];
	int ret;

	memset(why, 'x', sizeof(why));
	ret = lw_handshake_decode(data, size, &first, why, sizeof(why));
	if (ret != 0) {
		FUZZ_CHECK(ret == -EPROTO, "error %d", ret);
		FUZZ_CHECK(memchr(why, '\0', sizeof(why)) != NULL && why[0] != '\0', "no reason");
		return;
	}
	FUZZ_CHECK(first.qp_count <= LW_HANDSHAKE_QPS, "%u queue pairs", first.qp_count);
	FUZZ_CHECK(lw_handshake_encode(&first, &text) == 0, "can't be written");
	ret = lw_handshake_decode(text, strlen(text), &second, why, sizeof(why));
	FUZZ_CHECK(ret == 0, "what was written is refused: %s: %s", why, text);
	FUZZ_CHECK(same_handshake(&first, &second), "another handshake: %s", text);
	free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	try_handshake((const char *)data, size);
	try_contact((const char *)data, size);
	try_note((const char *)data, size);
	return 0;
}
