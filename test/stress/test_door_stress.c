/* SPDX-License-Identifier: Apache-2.0 */
/* A peer process writes into a buffer whenever the door allows it; the owner withdraws the buffer again and again,
 * waits for the peer, and looks for a byte that came later. 10,000 rounds; the first argument is another number.
 * Halfway the peer is killed, wherever it is, and another one takes its place. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lanewise/types.h>

#include "lib/clock.h"
#include "lib/door.h"

#define AREA 16384u
#define POISON 0xa5

static char why[200];

static void die(const char *what)
{
	fprintf(stderr, "%s: %s, %s\n", what, why, strerror(errno));
	exit(1);
}

/* Writes as an initiator does: enter, look, copy, leave. It reads the generation where it stands. */
static _Noreturn void be_peer(int fd, const unsigned char *nonce, unsigned char *area)
{
	struct door_place *place;
	unsigned char bytes[AREA];
	struct door *door;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (door_attach(fd, nonce, &door, why, sizeof(why)) != 0)
		die("peer");
	place = door_claim(door);
	if (place == NULL)
		die("no place");
	memset(bytes, 1, sizeof(bytes));
	for (;;) {
		uint32_t gen = (uint32_t)(atomic_load(&door->page->grant[5].word) >> 32);

		if (!door_enter(door, place))
			_exit(0);
		if (door_allows(door, 5, gen, LW_ACCESS_REMOTE_WRITE, 4096, AREA))
			memcpy(area, bytes, AREA);
		door_leave(place);
	}
}

static pid_t start_peer(struct door *door, const unsigned char *nonce, unsigned char *area)
{
	pid_t pid = fork();

	if (pid < 0)
		die("fork");
	if (pid == 0)
		be_peer(door->fd, nonce, area);
	return pid;
}

int main(int argc, char **argv)
{
	uint32_t rounds = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 0) : 10000, written = 0, dead = 0;
	unsigned char nonce[DOOR_NONCE], *area, poison[AREA];
	struct door *door = NULL;
	pid_t pid;

	area = mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (area == MAP_FAILED || door_open(64, &door, why, sizeof(why)) != 0)
		die("no door");
	memcpy(nonce, door->witness, sizeof(nonce));
	memset(poison, POISON, AREA);
	pid = start_peer(door, nonce, area);
	for (uint32_t i = 0; i < rounds; i++) {
		uint64_t until_ns = lw_now_ns() + 2000000;

		memset(area, 0, AREA);
		door_offer(door, 5, 2 * i + 1, LW_ACCESS_REMOTE_WRITE, 4096, AREA);
		while (__atomic_load_n(&area[i % AREA], __ATOMIC_RELAXED) != 1 && lw_now_ns() < until_ns)
			;
		if (i == rounds / 2) {
			kill(pid, SIGKILL);
			dead++;
		}
		door_withdraw(door, 5);
		if (door_settle(door, lw_now_ns() + UINT64_C(5000000000), why, sizeof(why)) != 0)
			die("settle");
		written += area[0] == 1;
		memset(area, POISON, AREA);
		for (uint64_t end_ns = lw_now_ns() + 5000 + i % 16 * 2000; lw_now_ns() < end_ns;)
			;
		if (memcmp(area, poison, AREA) != 0) {
			fprintf(stderr, "round %u: a byte was written after the buffer was withdrawn\n", i);
			return 1;
		}
		if (i == rounds / 2) {
			waitpid(pid, NULL, 0);
			pid = start_peer(door, nonce, area);
		}
	}
	door_shut(door);
	waitpid(pid, NULL, 0);
	door_drop(door);
	printf("%u rounds, written to in %u of them, %u peer killed: no late byte\n", rounds, written, dead);
	return written > rounds / 4 ? 0 : 1;
}
