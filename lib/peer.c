/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/peer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/engine.h"
#include "lib/error.h"
#include "meta/directory.h"
#include "meta/frame.h"
#include "meta/json.h"

#define DEFAULT_PORT 12001

int lw_peer_name(const struct lw_engine *engine, const char *name, char canonical[LW_NAME_MAX])
{
	size_t length = strnlen(name, LW_NAME_MAX);
	struct lw_hostport hp;

	if (engine->directory == NULL) {
		if (lw_hostport_parse(name, DEFAULT_PORT, &hp) != 0 ||
		    lw_hostport_format(&hp, canonical, LW_NAME_MAX) < 0)
			return lw_fail(-EINVAL, "\"%.*s\" is no segment name; it takes host:port or [v6]:port",
				       LW_NAME_MAX, name);
		return 0;
	}
	if (length == 0 || length == LW_NAME_MAX || !lw_is_printable(name))
		return lw_fail(-EINVAL, "a segment name has 1 to %d bytes, and no control characters", LW_NAME_MAX - 1);
	memcpy(canonical, name, length + 1);
	return 0;
}

/* What is left of timeout_ms since start_ns; 0: nothing. */
static uint32_t left_ms(uint64_t start_ns, uint32_t timeout_ms)
{
	uint64_t spent_ms = (lw_now_ns() - start_ns) / 1000000;

	return spent_ms < timeout_ms ? timeout_ms - (uint32_t)spent_ms : 0;
}

static int resolve(const char *name, const struct lw_hostport *hp, uint64_t start_ns, uint32_t timeout_ms,
		   struct lw_addrs *out)
{
	int error = lw_hostport_resolve(hp, left_ms(start_ns, timeout_ms), out);

	if (error != 0)
		return lw_fail(error, "the host %s of \"%s\" can't be found: %s", hp->host, name, lw_strerror(error));
	if (left_ms(start_ns, timeout_ms) == 0)
		return lw_fail(-ETIMEDOUT, "finding the host of \"%s\" took all of the %u ms", name, timeout_ms);
	return 0;
}

/* Our own document, as a question carries it. Nobody looks at its buffers, which may be many: it has none. */
static int make_question(struct lw_engine *engine, char **body, size_t *size)
{
	struct lw_desc desc;
	int error;

	lw_segment_describe(engine, &desc);
	error = lw_desc_encode(&desc, body, size);
	lw_desc_drop_rdma(&desc.rdma);
	return error;
}

static int ask(struct lw_engine *engine, uint64_t start_ns, uint32_t timeout_ms, struct lw_peer *peer)
{
	char *body = NULL, *reply = NULL, why[160];
	size_t size, reply_size;
	int error = make_question(engine, &body, &size);

	if (error != 0)
		return lw_fail(error, "no memory for our own descriptor");
	error = lw_ctrl_call(engine->ctrl, &peer->rpc, LW_FRAME_METADATA, body, size, left_ms(start_ns, timeout_ms),
			     &reply, &reply_size);
	free(body);
	if (error != 0)
		return lw_fail(error, "no descriptor from %s: %s", peer->name, lw_strerror(error));
	error = lw_desc_decode(reply, reply_size, &peer->desc, why, sizeof(why));
	free(reply);
	if (error != 0)
		return lw_fail(error, "%s sent a descriptor that can't be used: %s", peer->name, why);
	peer->desc->origin = LW_DESC_PEER;
	return 0;
}

static int find_by_asking(struct lw_engine *engine, uint32_t timeout_ms, struct lw_peer *peer)
{
	uint64_t start_ns = lw_now_ns();
	struct lw_hostport hp;
	int error = lw_hostport_parse(peer->name, DEFAULT_PORT, &hp);

	if (error == 0)
		error = resolve(peer->name, &hp, start_ns, timeout_ms, &peer->rpc);
	return error != 0 ? error : ask(engine, start_ns, timeout_ms, peer);
}

static int find_in_store(struct lw_engine *engine, uint32_t timeout_ms, struct lw_peer *peer)
{
	uint64_t start_ns = lw_now_ns();
	struct lw_directory_entry entry;
	char why[320];
	int error = lw_directory_find(engine->directory, peer->name, timeout_ms, &entry, why, sizeof(why));

	if (error == -ENOENT)
		return lw_fail(error, "the metadata store knows no \"%s\": %s", peer->name, why);
	if (error != 0)
		return lw_fail(error, "\"%s\" was not found in the metadata store: %s", peer->name, why);
	error = lw_desc_decode(entry.document, entry.length, &peer->desc, why, sizeof(why));
	free(entry.document);
	if (error != 0)
		return lw_fail(error, "the document of \"%s\" in the metadata store can't be used: %s", peer->name,
			       why);
	if (entry.contact.where.host[0] == '\0' && peer->desc->file_count == 0)
		error = lw_fail(-ENOENT, "the metadata store knows no \"%s\": it has a segment, but no address of it",
				peer->name);
	else if (strcmp(peer->desc->name, peer->name) != 0)
		error = lw_fail(-EPROTO, "the document of \"%s\" in the metadata store is that of \"%s\"", peer->name,
				peer->desc->name);
	if (error == 0 && peer->desc->file_count == 0) /* nobody is behind files */
		error = resolve(peer->name, &entry.contact.where, start_ns, timeout_ms, &peer->rpc);
	if (error != 0)
		lw_desc_free(peer->desc);
	return error;
}

int lw_peer_find(struct lw_engine *engine, const char *name, uint32_t timeout_ms, struct lw_peer *out)
{
	struct lw_peer peer = {.desc = NULL};
	int error;

	snprintf(peer.name, sizeof(peer.name), "%s", name);
	error = engine->directory != NULL ? find_in_store(engine, timeout_ms, &peer)
					  : find_by_asking(engine, timeout_ms, &peer);
	if (error == 0)
		*out = peer;
	return error;
}

/* Without waiting ----------------------------------------------------------------------------------------------------
 */

struct question {
	lw_peer_done done;
	void *arg;
};

static void on_entry(void *arg, int result, const struct lw_directory_entry *entry, const char *why)
{
	struct question *question = arg;

	(void)why;
	question->done(question->arg, result, result == 0 ? entry->document : NULL, result == 0 ? entry->length : 0);
	if (result == 0)
		free(entry->document);
	free(question);
}

static int ask_store(struct lw_engine *engine, const char *name, uint32_t timeout_ms, lw_peer_done done, void *arg)
{
	struct question *question = malloc(sizeof(*question));
	int error;

	if (question == NULL)
		return -ENOMEM;
	*question = (struct question){.done = done, .arg = arg};
	error = lw_directory_find_async(engine->directory, name, timeout_ms, on_entry, question);
	if (error != 0)
		free(question);
	return error;
}

int lw_peer_ask(struct lw_engine *engine, const char *name, const struct lw_addrs *rpc, uint32_t timeout_ms,
		lw_peer_done done, void *arg)
{
	char *body = NULL;
	size_t size;
	int error;

	if (engine->directory != NULL)
		return ask_store(engine, name, timeout_ms, done, arg);
	error = make_question(engine, &body, &size);
	if (error == 0)
		error = lw_ctrl_call_async(engine->ctrl, rpc, LW_FRAME_METADATA, body, size, timeout_ms, done, arg);
	free(body);
	return error;
}

/* A dead engine's documents ------------------------------------------------------------------------------------------
 */

/* Whether somebody answers at the place that a name is said to be. */
static bool answers(struct lw_engine *engine, const char *name, const struct lw_contact *contact, uint64_t start_ns,
		    uint32_t timeout_ms)
{
	const char *question = contact->incarnation != 0 ? LW_PROBE_LIFE : "{}";
	struct lw_addrs rpc;
	char *reply = NULL;
	size_t size;
	int error = resolve(name, &contact->where, start_ns, timeout_ms, &rpc);

	if (error == 0)
		error = lw_ctrl_call(engine->ctrl, &rpc, LW_FRAME_PROBE, question, strlen(question),
				     left_ms(start_ns, timeout_ms), &reply, &size);
	/* Another life may answer there. */
	if (error == 0 && contact->incarnation != 0 && lw_store_owner(reply, size) != 0 &&
	    lw_store_owner(reply, size) != contact->incarnation)
		error = -ESTALE;
	free(reply);
	return error == 0;
}

int lw_segment_purge(struct lw_engine *engine, const char *name, uint32_t timeout_ms)
{
	uint64_t start_ns = lw_now_ns();
	struct lw_directory_entry entry;
	char why[320];
	int error;

	if (name == NULL)
		return lw_fail(-EINVAL, "name must not be NULL");
	error = lw_engine_enter(engine);
	if (error != 0)
		return error;
	if (timeout_ms == 0)
		timeout_ms = (uint32_t)engine->config.store_timeout_ms;
	name += strspn(name, "/");
	if (engine->directory == NULL) {
		error = lw_fail(-ENOTSUP, "there is no metadata store that could hold something of \"%.100s\"", name);
		goto out;
	}
	error = lw_directory_find(engine->directory, name, timeout_ms, &entry, why, sizeof(why));
	if (error == 0 && entry.contact.where.host[0] == '\0') {
		free(entry.document);
		snprintf(why, sizeof(why), "it is no engine's: lwfile removes a segment of files");
		error = -ENOENT;
	} else if (error == 0) {
		free(entry.document);
		/* Half of the time for one who may not answer. */
		if (answers(engine, name, &entry.contact, start_ns, timeout_ms / 2 + 1))
			error = -EBUSY;
	}
	if (error == 0)
		error = lw_directory_purge(engine->directory, name, entry.contact.incarnation,
					   left_ms(start_ns, timeout_ms), why, sizeof(why));
	if (error == -EBUSY)
		lw_fail(error, "\"%s\" answers: it is not dead", name);
	else if (error != 0)
		lw_fail(error, "\"%.100s\" was not removed from the metadata store: %s", name, why);
out:
	lw_engine_leave(engine);
	return error;
}
