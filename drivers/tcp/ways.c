/* SPDX-License-Identifier: Apache-2.0 */
#include "drivers/tcp/ways.h"

#include "lib/engine.h"

/* The rails from which an address of the peer's is reached: those in its subnet; if there is none and any will do, all
 * of its family. To an address of our own the way leads through no device. */
static uint32_t rails_to(const struct tcp_rails *rails, const struct sockaddr_storage *addr, bool any,
			 const struct tcp_rail *out[TCP_RAILS])
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < rails->count; i++)
		if (lw_sockaddr_same_host(&rails->rail[i].addr, addr))
			return 0;
	for (uint32_t i = 0; i < rails->count; i++)
		if (tcp_rail_reaches(&rails->rail[i], addr))
			out[count++] = &rails->rail[i];
	if (count != 0 || !any)
		return count;
	for (uint32_t i = 0; i < rails->count; i++)
		if (rails->rail[i].addr.ss_family == addr->ss_family)
			out[count++] = &rails->rail[i];
	return count;
}

/* Goes over all ways in their order: in each round one for each of the peer's addresses that has one left. What the
 * peer did not name to be used side by side comes last, and is left to the routes if no rail is in its subnet. Their
 * number, or the way of that number in *out. */
static uint32_t walk(const struct tcp_rails *rails, const struct lw_view *view, uint32_t number, struct tcp_way *out)
{
	const struct tcp_rail *from[TCP_RAILS];
	uint32_t named = view->rails != 0 ? view->rails : view->data.count > 0 ? 1 : 0;
	uint32_t at = 0;

	for (uint32_t part = 0; part < 2; part++) {
		uint32_t first = part == 0 ? 0 : named, end = part == 0 ? named : view->data.count;

		for (uint32_t round = 0; round < TCP_RAILS; round++) {
			for (uint32_t i = first; i < end; i++) {
				uint32_t count = rails_to(rails, &view->data.addr[i], part == 0, from);

				if (round >= (count != 0 ? count : 1))
					continue;
				if (at == number && out != NULL)
					*out = (struct tcp_way){.rail = count == 0 ? NULL
										   : from[(i - first + round) % count],
								.addr = &view->data.addr[i]};
				at++;
			}
		}
	}
	return at;
}

struct lw_ways tcp_ways_count(const struct tcp_rails *rails, const struct lw_view *view)
{
	struct lw_ways ways = {.count = walk(rails, view, UINT32_MAX, NULL), .at_once = 1};
	bool used[TCP_RAILS] = {false};
	uint32_t ours = 0;

	if (ways.count == 0)
		ways.count = 1;
	for (uint32_t i = 0; i < ways.count; i++) {
		struct tcp_way way;

		if (!tcp_ways_get(rails, view, i, &way) || way.rail == NULL || used[way.rail - rails->rail])
			continue;
		used[way.rail - rails->rail] = true;
		ours++;
	}
	ways.at_once = ours > view->rails ? ours : view->rails;
	if (ways.at_once == 0)
		ways.at_once = 1;
	if (ways.at_once > ways.count)
		ways.at_once = ways.count;
	return ways;
}

bool tcp_ways_get(const struct tcp_rails *rails, const struct lw_view *view, uint32_t number, struct tcp_way *out)
{
	uint32_t count = walk(rails, view, UINT32_MAX, NULL);

	if (count == 0)
		return false;
	walk(rails, view, number % count, out);
	return true;
}
