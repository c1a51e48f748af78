/* SPDX-License-Identifier: Apache-2.0 */
/* Fences: before a lane's new connection is greeted, its older ones have ended, on whichever workers they are.
 *
 * What an old connection still had under way can't be stored after that, so the initiator may repeat a WRITE of which
 * it does not know how far it came, and an application that was told of a failure may use the memory anew.
 *
 * A fence goes from worker to worker as a command, beginning and ending at the new connection's own. It outlives that
 * connection if need be. Copies into the memory of a GPU that an ended connection had begun go on to their end: the
 * fence waits for them at each worker.
 */
#include "drivers/tcp/tcp.h"
#include "lib/engine.h"

static struct tcp_fence *fence_of(struct lw_command *command)
{
	return (struct tcp_fence *)(void *)((char *)command - offsetof(struct tcp_fence, command));
}

static void hop(struct lw_worker *at, struct lw_command *command)
{
	struct tcp_fence *fence = fence_of(command);
	struct tcp_engine *tcp = fence->home->tcp;

	if (at != fence->home->worker)
		fence->outrun |= tcp_serve_end_older(tcp->workers[at->index], fence->token, NULL);
	if (lw_bounces_orphaned(&at->bounces)) {
		lw_worker_later(at, command);
		return;
	}
	if (at == fence->home->worker) {
		struct tcp_served *served = fence->served;

		SLIST_INSERT_HEAD(&fence->home->fences, fence, link);
		if (served != NULL)
			tcp_serve_fenced(served, fence->outrun);
		return;
	}
	lw_worker_send(tcp->workers[(at->index + 1) % tcp->worker_count]->worker, command);
}

bool tcp_fence_begin(struct tcp_served *served, struct tcp_worker *home, uint64_t token, struct tcp_fence **out)
{
	struct tcp_engine *tcp = home->tcp;
	struct tcp_fence *fence = SLIST_FIRST(&home->fences);
	bool alone = tcp->worker_count <= 1, outrun;

	*out = NULL;
	if (!alone && fence == NULL)
		return false;
	outrun = tcp_serve_end_older(home, token, served);
	if (alone && !lw_bounces_orphaned(&home->worker->bounces)) {
		tcp_serve_fenced(served, outrun);
		return true;
	}
	if (fence == NULL)
		return false;
	SLIST_REMOVE_HEAD(&home->fences, link);
	*fence = (struct tcp_fence){
		.command.run = hop, .home = home, .served = served, .token = token, .outrun = outrun};
	*out = fence;
	lw_worker_send(alone ? home->worker : tcp->workers[(home->worker->index + 1) % tcp->worker_count]->worker,
		       &fence->command);
	return true;
}
