/* SPDX-License-Identifier: Apache-2.0 */
#include "drivers/rdma/endpoint.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drivers/rdma/worker.h"
#include "lib/engine.h"
#include "meta/frame.h"

#define PROBE_STEP_MS 250
#define PROBE_STEPS 80 /* without an answer for so long the peer is gone */
#define MARKS 8        /* segments of one peer that one worker may reach at once */

uint32_t rdma_probe_ms = 20000;

struct rdma_endpoint *rdma_endpoint_find(struct rdma_engine *rdma, const char *here, const char *there)
{
	struct rdma_endpoint *endpoint;

	LIST_FOREACH(endpoint, &rdma->endpoints, link)
	if (strcmp(endpoint->there, there) == 0 && strcmp(endpoint->here, here) == 0)
		return endpoint;
	return NULL;
}

/* Seats ---------------------------------------------------------------------------------------------------------------
 */

static void answer(struct rdma_seat *seat, struct rdma_qp *qp, enum lw_reason reason)
{
	seat->qp = qp;
	seat->reason = reason;
	seat->answered = true;
	if (qp == NULL)
		seat->endpoint = NULL;
	seat->command.run = rdma_seat_answered;
	lw_worker_send(seat->worker->worker, &seat->command);
}

/* Ends the claims that were not answered. */
static void turn_away(struct rdma_endpoint *endpoint, enum lw_reason reason)
{
	for (uint32_t i = 0; i < endpoint->count; i++) {
		struct rdma_seat *seat = endpoint->seat[i];

		if (seat == NULL || seat->answered)
			continue;
		endpoint->seat[i] = NULL;
		answer(seat, NULL, reason);
	}
}

/* Endpoints -----------------------------------------------------------------------------------------------------------
 */

/* Whether a lane here has a queue pair of it, or waits for one. */
static bool is_seated(const struct rdma_endpoint *endpoint)
{
	for (uint32_t i = 0; i < endpoint->count; i++)
		if (endpoint->seat[i] != NULL)
			return true;
	return false;
}

static void reap(struct rdma_endpoint *endpoint)
{
	if (endpoint->state != RDMA_OVER || endpoint->calls != 0)
		return;
	if (is_seated(endpoint))
		return;
	for (uint32_t i = 0; i < endpoint->count; i++)
		rdma_qp_close(&endpoint->qp[i]);
	LIST_REMOVE(endpoint, link);
	endpoint->rdma->endpoint_count--;
	free(endpoint);
}

bool rdma_endpoint_end(struct rdma_endpoint *endpoint, enum lw_reason reason)
{
	struct rdma_engine *rdma = endpoint->rdma;
	bool broken = true;

	if (endpoint->state == RDMA_OVER)
		return true;
	for (uint32_t i = 0; i < endpoint->count; i++)
		broken &= rdma_qp_break(&endpoint->qp[i]);
	lw_ctrl_timer_clear(&endpoint->timer);
	endpoint->state = RDMA_OVER;
	LIST_REMOVE(endpoint, link);
	LIST_INSERT_HEAD(&rdma->over, endpoint, link);
	turn_away(endpoint, reason);
	for (uint32_t i = 0; i < endpoint->count; i++)
		if (endpoint->seat[i] != NULL)
			rdma_worker_alarm(endpoint->seat[i]->worker);
	reap(endpoint);
	return broken;
}

/* Where a connection's complaints are counted; 0 is no mark. */
static uint32_t *told(struct rdma_endpoint *endpoint, uint32_t *mark)
{
	uint32_t hash = 5381;

	for (const char *c = endpoint->here; *c != '\0'; c++)
		hash = hash * 33 + (unsigned char)*c;
	for (const char *c = endpoint->there; *c != '\0'; c++)
		hash = hash * 33 + (unsigned char)*c;
	*mark = hash | 1;
	return &endpoint->rdma->told[hash % RDMA_TOLD];
}

/* Once until the connection has been made; the attempts go on. */
static void complain(struct rdma_endpoint *endpoint, const char *what, const char *text)
{
	uint32_t mark, *last = told(endpoint, &mark);

	lw_log_limited(&endpoint->rdma->log_limit, *last == mark ? LW_LOG_DEBUG : LW_LOG_WARNING,
		       "rdma: no connection from %s to %s: %s%s", endpoint->here, endpoint->there, what, text);
	*last = mark;
}

static void set_timer(struct rdma_endpoint *endpoint, uint32_t ms)
{
	lw_ctrl_timer_set(endpoint->rdma->engine->ctrl, &endpoint->timer, lw_now_ns() + (uint64_t)ms * 1000000);
}

/* Nobody here uses the queue pairs, so nobody would find that the peer is gone, and they would stay for ever. A WRITE
 * of no bytes needs no key and changes nothing; that it completes says that the peer's end is there. Its number, 0, is
 * no lane's: a lane that takes the queue pair meanwhile passes it over. */
static void probe(struct rdma_endpoint *endpoint)
{
	struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED}, *refused;
	struct ibv_wc wc = {.status = IBV_WC_SUCCESS};
	int count = 0;

	if (endpoint->probed == 0)
		count = ibv_post_send(endpoint->qp[0].qp, &wr, &refused) == 0 ? 0 : -1;
	else
		count = ibv_poll_cq(endpoint->qp[0].cq, 1, &wc);
	if (count < 0 || wc.status != IBV_WC_SUCCESS || endpoint->probed == PROBE_STEPS) {
		rdma_endpoint_end(endpoint, LW_REASON_RESET);
		return;
	}
	endpoint->probed = count > 0 ? 0 : endpoint->probed + 1;
	set_timer(endpoint, count > 0 ? rdma_probe_ms : PROBE_STEP_MS);
}

static void on_timer(struct lw_ctrl *ctrl, struct lw_ctrl_timer *timer)
{
	struct rdma_endpoint *endpoint = lw_container(timer, struct rdma_endpoint, timer);

	(void)ctrl;
	if (endpoint->state != RDMA_JOINED) {
		complain(endpoint, "the peer does not say that it is ready", "");
		rdma_endpoint_end(endpoint, LW_REASON_UNREACHABLE);
	} else if (is_seated(endpoint)) {
		endpoint->probed = 0;
		set_timer(endpoint, rdma_probe_ms);
	} else {
		probe(endpoint);
	}
}

/* Connections are bounded; the one that was made first of those that nobody here uses makes room. */
static bool make_room(struct rdma_engine *rdma)
{
	struct rdma_endpoint *endpoint, *oldest = NULL;

	if (rdma->endpoint_count < rdma->engine->config.rdma_max_endpoints)
		return true;
	LIST_FOREACH(endpoint, &rdma->endpoints, link)
	if (endpoint->calls == 0 && !is_seated(endpoint))
		oldest = endpoint;
	return oldest != NULL && rdma_endpoint_end(oldest, LW_REASON_RESET);
}

struct rdma_endpoint *rdma_endpoint_make(struct rdma_engine *rdma, struct rdma_device *device, const char *here,
					 const char *there, struct ibv_comp_channel *channel)
{
	struct rdma_endpoint *endpoint = make_room(rdma) ? calloc(1, sizeof(*endpoint)) : NULL;
	uint32_t wanted = (uint32_t)rdma->engine->config.rdma_qps;

	if (endpoint == NULL)
		return NULL;
	endpoint->rdma = rdma;
	endpoint->device = device;
	endpoint->timer.fire = on_timer;
	snprintf(endpoint->here, sizeof(endpoint->here), "%s", here);
	snprintf(endpoint->there, sizeof(endpoint->there), "%s", there);
	for (; endpoint->count < wanted; endpoint->count++) {
		int error = rdma_qp_open(&endpoint->qp[endpoint->count], device, channel);

		if (error == 0)
			continue;
		complain(endpoint, "no queue pair: ", strerrordesc_np(-error));
		while (endpoint->count > 0)
			rdma_qp_close(&endpoint->qp[--endpoint->count]);
		free(endpoint);
		return NULL;
	}
	LIST_INSERT_HEAD(&rdma->endpoints, endpoint, link);
	rdma->endpoint_count++;
	return endpoint;
}

bool rdma_endpoint_is(const struct rdma_endpoint *endpoint, const struct lw_handshake *said)
{
	return said->qp_count == endpoint->count &&
	       memcmp(said->qp, endpoint->peer_qp, endpoint->count * sizeof(said->qp[0])) == 0;
}

int rdma_endpoint_join(struct rdma_endpoint *endpoint, const struct lw_handshake *said)
{
	int error = 0;

	for (uint32_t i = 0; i < endpoint->count && error == 0; i++) {
		endpoint->peer_qp[i] = said->qp[i];
		error = rdma_qp_join(&endpoint->qp[i], said->has_gid ? said->gid : endpoint->gid,
				     said->has_gid ? said->lid : endpoint->lid, said->qp[i]);
	}
	endpoint->peer_incarnation = said->incarnation;
	if (error != 0)
		complain(endpoint, "the queue pairs can't be joined: ", strerrordesc_np(-error));
	return error;
}

void rdma_endpoint_joined(struct rdma_endpoint *endpoint)
{
	uint32_t mark, *last = told(endpoint, &mark);

	if (*last == mark)
		*last = 0;
	set_timer(endpoint, rdma_probe_ms);
	endpoint->state = RDMA_JOINED;
	for (uint32_t i = 0; i < endpoint->count; i++) {
		struct rdma_seat *seat = endpoint->seat[i];

		if (seat == NULL || seat->answered)
			continue;
		if (seat->meant == endpoint->peer_incarnation) {
			answer(seat, &endpoint->qp[i], LW_REASON_NONE);
		} else {
			endpoint->seat[i] = NULL;
			answer(seat, NULL, LW_REASON_RESTARTED);
		}
	}
}

struct lw_handshake rdma_endpoint_words(const struct rdma_endpoint *endpoint)
{
	struct lw_handshake words = {.has_gid = true,
				     .lid = endpoint->device->lid,
				     .has_ready = true,
				     .incarnation = endpoint->rdma->engine->incarnation,
				     .qp_count = endpoint->count};

	memcpy(words.local_path, endpoint->here, sizeof(words.local_path));
	memcpy(words.peer_path, endpoint->there, sizeof(words.peer_path));
	memcpy(words.gid, endpoint->device->gid, sizeof(words.gid));
	for (uint32_t i = 0; i < endpoint->count; i++)
		words.qp[i] = endpoint->qp[i].number;
	return words;
}

/* Our requests --------------------------------------------------------------------------------------------------------
 */

static int call(struct rdma_endpoint *endpoint, const struct lw_handshake *words, lw_ctrl_done done, void *arg)
{
	struct lw_engine *engine = endpoint->rdma->engine;
	char *text;
	int error = lw_handshake_encode(words, &text);

	if (error != 0)
		return error;
	error = lw_ctrl_call_async(engine->ctrl, &endpoint->rpc, LW_FRAME_CONNECTION, text, strlen(text),
				   (uint32_t)engine->config.handshake_timeout_ms, done, arg);
	free(text);
	endpoint->calls += error == 0;
	return error;
}

static void on_ready(void *arg, int result, const char *body, size_t size)
{
	struct rdma_endpoint *endpoint = arg;
	struct lw_handshake said = {.qp_count = 0};
	char why[160] = "";

	endpoint->calls--;
	if (endpoint->state != RDMA_WAITS) {
		reap(endpoint); /* it is over, or the peer's own word came first */
		return;
	}
	if (result == 0)
		result = lw_handshake_decode(body, size, &said, why, sizeof(why));
	if (result == 0 && said.reply[0] == '\0') {
		rdma_endpoint_joined(endpoint);
		return;
	}
	complain(endpoint, "the peer was ready, and is not any more: ", said.reply[0] != '\0' ? said.reply : why);
	rdma_endpoint_end(endpoint, LW_REASON_UNREACHABLE);
}

/* Whether the peer's reply is one to go on with; else the reason. */
static enum lw_reason check_reply(struct rdma_endpoint *endpoint, const struct lw_handshake *said)
{
	if (endpoint->meant != 0 && said->incarnation != 0 && said->incarnation != endpoint->meant)
		return LW_REASON_RESTARTED;
	if (said->reply[0] != '\0') {
		complain(endpoint, "the peer refuses: ", said->reply);
		return LW_REASON_UNREACHABLE;
	}
	if (strcmp(said->local_path, endpoint->there) != 0 || strcmp(said->peer_path, endpoint->here) != 0) {
		complain(endpoint, "the peer answers for other NIC paths: ", said->local_path);
		return LW_REASON_PROTOCOL;
	}
	if (endpoint->meant != 0 && said->incarnation == 0)
		return LW_REASON_RESTARTED;
	if (said->qp_count != endpoint->count) {
		complain(endpoint, "the peer has another number of queue pairs; set rdma_qps alike", "");
		return LW_REASON_PROTOCOL;
	}
	/* Its own request came meanwhile, and was about the same queue pairs. */
	if (endpoint->state != RDMA_ASKING && !rdma_endpoint_is(endpoint, said))
		return LW_REASON_PROTOCOL;
	return LW_REASON_NONE;
}

static void on_reply(void *arg, int result, const char *body, size_t size)
{
	struct rdma_endpoint *endpoint = arg;
	struct lw_handshake said = {.qp_count = 0}, words;
	char why[160] = "it can't be reached";
	enum lw_reason reason = LW_REASON_UNREACHABLE;

	endpoint->calls--;
	if (endpoint->state == RDMA_OVER) {
		reap(endpoint);
		return;
	}
	if (result == 0)
		result = lw_handshake_decode(body, size, &said, why, sizeof(why));
	if (result == 0)
		reason = check_reply(endpoint, &said);
	else if (endpoint->state != RDMA_ASKING)
		return; /* the peer's own request came through: its word counts */
	else
		complain(endpoint, "the peer's handshake port: ", why);
	if (result == 0 && reason == LW_REASON_NONE && endpoint->state == RDMA_ASKING) {
		if (rdma_endpoint_join(endpoint, &said) != 0)
			reason = LW_REASON_UNREACHABLE;
		else
			endpoint->state = RDMA_WAITS;
	}
	if (reason != LW_REASON_NONE) {
		rdma_endpoint_end(endpoint, reason);
		return;
	}
	if (!said.has_ready) {
		rdma_endpoint_joined(endpoint);
		return;
	}
	words = rdma_endpoint_words(endpoint);
	words.meant = endpoint->meant;
	words.ready = true;
	if (call(endpoint, &words, on_ready, endpoint) != 0)
		rdma_endpoint_end(endpoint, LW_REASON_RESOURCES);
}

static void ask(struct rdma_endpoint *endpoint, const struct rdma_seat *seat)
{
	struct lw_handshake words = rdma_endpoint_words(endpoint);

	endpoint->rpc = seat->rpc;
	endpoint->meant = seat->meant;
	endpoint->lid = seat->lid;
	memcpy(endpoint->gid, seat->gid, sizeof(endpoint->gid));
	endpoint->state = RDMA_ASKING;
	words.meant = seat->meant;
	if (call(endpoint, &words, on_reply, endpoint) != 0)
		rdma_endpoint_end(endpoint, LW_REASON_RESOURCES);
}

/* The endpoint that has the seat's place, made if it is new. NULL: there is none. */
static struct rdma_endpoint *place_of(struct rdma_engine *rdma, const struct rdma_seat *seat)
{
	struct rdma_device *device = &rdma->device[seat->device];
	uint32_t worker = seat->worker->worker->index;
	char here[LW_NIC_PATH];

	for (uint32_t i = 0; i < MARKS; i++) {
		struct rdma_endpoint *endpoint;

		if (!lw_nic_path(here, rdma->engine->name, device->name, worker + i * rdma->engine->worker_count))
			return NULL;
		endpoint = rdma_endpoint_find(rdma, here, seat->there);
		if (endpoint == NULL)
			return rdma_endpoint_make(rdma, device, here, seat->there,
						  seat->worker->channel[device->index].channel);
		if (endpoint->seat[seat->number] == NULL)
			return endpoint;
	}
	return NULL;
}

void rdma_seat_asked(struct lw_ctrl_job *job)
{
	struct rdma_seat *seat = lw_container(job, struct rdma_seat, job);
	struct rdma_engine *rdma = seat->worker->rdma;
	struct rdma_endpoint *endpoint = NULL;

	seat->answered = false;
	seat->endpoint = NULL;
	if (!atomic_load(&rdma->device[seat->device].up)) {
		answer(seat, NULL, LW_REASON_UNREACHABLE);
		return;
	}
	endpoint = place_of(rdma, seat);
	if (endpoint == NULL) {
		answer(seat, NULL, LW_REASON_RESOURCES);
		return;
	}
	seat->endpoint = endpoint;
	endpoint->seat[seat->number] = seat;
	if (endpoint->state == RDMA_NEW)
		ask(endpoint, seat);
	else if (endpoint->state == RDMA_JOINED)
		rdma_endpoint_joined(endpoint);
}

static void free_seat(struct rdma_seat *seat, bool over)
{
	seat->over = over;
	seat->endpoint = NULL;
	seat->command.run = rdma_seat_freed;
	lw_worker_send(seat->worker->worker, &seat->command);
}

static void on_over(void *arg, int result, const char *body, size_t size)
{
	struct rdma_seat *seat = arg;
	struct rdma_endpoint *endpoint = seat->endpoint;
	struct lw_handshake said = {.qp_count = 0};

	endpoint->calls--;
	if (result == 0)
		result = lw_handshake_decode(body, size, &said, NULL, 0);
	/* Another life of the peer has nothing of ours, either. */
	free_seat(seat, result == 0 && (said.over || (said.incarnation != 0 && said.incarnation != endpoint->meant)));
	reap(endpoint);
}

void rdma_seat_left(struct lw_ctrl_job *job)
{
	struct rdma_seat *seat = lw_container(job, struct rdma_seat, job);
	struct rdma_endpoint *endpoint = seat->endpoint;
	struct lw_handshake words = rdma_endpoint_words(endpoint);

	endpoint->seat[seat->number] = NULL;
	if (seat->owed && seat->meant != 0) {
		endpoint->rpc = seat->rpc;
		endpoint->meant = seat->meant;
		words.meant = seat->meant;
		words.over = true;
		if (call(endpoint, &words, on_over, seat) != 0)
			free_seat(seat, false);
	} else {
		free_seat(seat, false);
	}
	if (seat->hurt && endpoint->state != RDMA_OVER)
		rdma_endpoint_end(endpoint, LW_REASON_RESET);
	else
		reap(endpoint);
}

/* Ends ----------------------------------------------------------------------------------------------------------------
 */

void rdma_endpoints_break(struct rdma_engine *rdma, const struct rdma_device *device, const struct ibv_qp *qp)
{
	struct rdma_endpoint *endpoint, *next;

	for (endpoint = LIST_FIRST(&rdma->endpoints); endpoint != NULL; endpoint = next) {
		bool meant = qp == NULL;

		next = LIST_NEXT(endpoint, link);
		for (uint32_t i = 0; i < endpoint->count; i++)
			meant |= endpoint->qp[i].qp == qp;
		if (meant && (device == NULL || endpoint->device == device))
			rdma_endpoint_end(endpoint, LW_REASON_RESET);
	}
}

static void free_list(struct rdma_endpoint_list *list)
{
	struct rdma_endpoint *endpoint, *next;

	for (endpoint = LIST_FIRST(list); endpoint != NULL; endpoint = next) {
		next = LIST_NEXT(endpoint, link);
		for (uint32_t i = 0; i < endpoint->count; i++)
			rdma_qp_close(&endpoint->qp[i]);
		free(endpoint);
	}
	LIST_INIT(list);
}

void rdma_endpoints_free(struct rdma_engine *rdma)
{
	free_list(&rdma->endpoints);
	free_list(&rdma->over);
}
