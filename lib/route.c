/* SPDX-License-Identifier: Apache-2.0 */
/* The drivers that reach a peer, best first: what lw_view.routes holds. */
#include <errno.h>
#include <string.h>

#include "lib/engine.h"
#include "lib/error.h"
#include "lib/log.h"
#include "meta/descriptor.h"

int lw_driver_index(const struct lw_engine *engine, const char *name, size_t length)
{
	for (size_t i = 0; i < lw_drivers_count; i++)
		if (engine->driver_on[i] && strlen(lw_drivers[i]->name) == length &&
		    memcmp(lw_drivers[i]->name, name, length) == 0)
			return (int)i;
	return -1;
}

void lw_routes_drop(struct lw_view *view)
{
	for (uint32_t i = 0; i < view->route_count; i++) {
		const struct lw_driver_ops *ops = lw_drivers[view->routes[i].driver];

		if (ops->forget != NULL && view->routes[i].peer != NULL)
			ops->forget(view->routes[i].peer);
		view->routes[i].peer = NULL;
	}
}

static bool stages(const struct lw_driver_ops *ops, uint32_t pair)
{
	return (pair & 1) == LW_MEM_DEVICE && !lw_driver_moves(ops, pair) &&
	       lw_driver_moves(ops, LW_PAIR(LW_MEM_HOST, pair >> 1));
}

const struct lw_route *lw_route_at(const struct lw_view *view, uint32_t pair, uint32_t n, bool *staged)
{
	for (int turn = 0; turn < 2; turn++) {
		*staged = turn != 0;
		for (uint32_t i = 0; i < view->route_count; i++) {
			const struct lw_driver_ops *ops = lw_drivers[view->routes[i].driver];

			if ((*staged ? stages(ops, pair) : lw_driver_moves(ops, pair)) && n-- == 0)
				return &view->routes[i];
		}
	}
	return NULL;
}

/* Once a peer is enough, however often it is opened. */
static bool was_told(struct lw_engine *engine, uint64_t incarnation)
{
	size_t at = incarnation % (sizeof(engine->told) / sizeof(engine->told[0]));

	return atomic_exchange(&engine->told[at], incarnation) == incarnation;
}

int lw_routes_find(struct lw_engine *engine, const struct lw_desc *desc, int via, struct lw_view *view)
{
	const char *list = engine->config.drivers;
	int first_error = 0;

	while (*list != '\0') {
		size_t length = strcspn(list, ",");
		int driver = lw_driver_index(engine, list, length);
		void *peer = NULL;
		char why[200] = "";
		int error;

		list += length + (list[length] == ',');
		if (driver < 0 || lw_drivers[driver]->reach == NULL || view->route_count == LW_MAX_DRIVERS ||
		    (via != LW_VIA_ANY && via != driver))
			continue;
		error = lw_drivers[driver]->reach(engine->driver_context[driver], desc, &peer, why, sizeof(why));
		if (error == -EPROTONOSUPPORT) /* whatever else would reach it: it is set up not to be reached by us */
			return lw_fail(error, "%s %s", desc->name, why);
		if (error == 0)
			view->routes[view->route_count++] = (struct lw_route){.driver = (uint32_t)driver, .peer = peer};
		else if (error != -ENOTSUP && desc->file_count != 0)
			first_error = lw_fail(error, "%s can't be opened: %s", desc->name, why);
		else if (error != -ENOTSUP && !was_told(engine, desc->incarnation))
			lw_log(LW_LOG_WARNING, "%s is not reached by %s: %s", desc->name, lw_drivers[driver]->name,
			       why);
	}
	if (view->route_count == 0 && first_error != 0)
		return first_error;
	if (view->route_count == 0 && via != LW_VIA_ANY)
		return lw_fail(-ENOTSUP, "%s, which offers \"%s\", is not reached by %s", desc->name, desc->protocol,
			       lw_drivers[via]->name);
	if (view->route_count == 0)
		return lw_fail(-ENOTSUP,
			       "%s offers \"%s\", and no driver of this engine speaks that; see the setting drivers",
			       desc->name, desc->protocol);
	return 0;
}
