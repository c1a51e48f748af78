/* SPDX-License-Identifier: Apache-2.0 */
/* drivers/shm/door: what is offered and to whom, places, the wait for those inside, and memory that holds anything. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/engines.h"
#include "lib/clock.h"
#include "lib/door.h"

#define BUFFERS 100u
#define RW (LW_ACCESS_REMOTE_READ | LW_ACCESS_REMOTE_WRITE)

static char why[200];

static struct door *open_door(void)
{
	struct door *door = NULL;

	if (door_open(BUFFERS, &door, why, sizeof(why)) != 0)
		fail_msg("no door: %s", why);
	return door;
}

static struct door *attach(const struct door *owner)
{
	struct door *door = NULL;

	if (door_attach(owner->fd, owner->witness, &door, why, sizeof(why)) != 0)
		fail_msg("not attached: %s", why);
	return door;
}

static uint64_t in_ms(uint64_t ms)
{
	return lw_now_ns() + ms * 1000000;
}

static void test_allows_only_what_is_offered(void **state)
{
	struct door *owner = open_door(), *peer = attach(owner);

	(void)state;
	assert_false(door_allows(peer, 3, 7, LW_ACCESS_REMOTE_READ, 0x1000, 1));
	door_offer(owner, 3, 7, LW_ACCESS_REMOTE_READ, 0x1000, 0x100);
	assert_true(door_allows(peer, 3, 7, LW_ACCESS_REMOTE_READ, 0x1000, 0x100));
	assert_true(door_allows(peer, 3, 7, LW_ACCESS_REMOTE_READ, 0x10ff, 1));
	assert_false(door_allows(peer, 3, 7, LW_ACCESS_REMOTE_WRITE, 0x1000, 1));
	assert_false(door_allows(peer, 3, 7, RW, 0x1000, 1));
	assert_false(door_allows(peer, 3, 9, LW_ACCESS_REMOTE_READ, 0x1000, 1)); /* another buffer had the slot */
	assert_false(door_allows(peer, 3, 0, LW_ACCESS_REMOTE_READ, 0x1000, 1));
	assert_false(door_allows(peer, 4, 7, LW_ACCESS_REMOTE_READ, 0x1000, 1));
	assert_false(door_allows(peer, 3, 7, LW_ACCESS_REMOTE_READ, 0xfff, 2));
	assert_false(door_allows(peer, 3, 7, LW_ACCESS_REMOTE_READ, 0x1000, 0x101));
	assert_false(door_allows(peer, 3, 7, LW_ACCESS_REMOTE_READ, 0x1100, 1));
	assert_false(door_allows(peer, 3, 7, LW_ACCESS_REMOTE_READ, 0x1001, UINT64_MAX)); /* wraps */
	door_withdraw(owner, 3);
	assert_false(door_allows(peer, 3, 7, LW_ACCESS_REMOTE_READ, 0x1000, 1));
	door_drop(peer);
	door_drop(owner);
}

static void test_slots_beyond_the_table_are_nobodys(void **state)
{
	struct door *owner = open_door(), *peer = attach(owner);

	(void)state;
	door_offer(owner, BUFFERS, 1, RW, 0x1000, 1);
	door_offer(owner, UINT32_MAX, 1, RW, 0x1000, 1);
	door_withdraw(owner, BUFFERS);
	assert_false(door_allows(peer, BUFFERS, 1, RW, 0x1000, 1));
	assert_false(door_allows(peer, UINT32_MAX, 1, RW, 0x1000, 1));
	assert_int_equal(peer->buffers, BUFFERS);
	/* Whatever is written there afterwards: what was read at first counts. */
	peer->page->buffers = UINT32_MAX;
	assert_false(door_allows(peer, BUFFERS, 1, RW, 0x1000, 1));
	door_offer(owner, UINT32_MAX - 1, 1, RW, 0x1000, 1);
	door_drop(peer);
	door_drop(owner);
}

static void test_places_are_claimed_once_and_come_back(void **state)
{
	struct door *owner = open_door(), *peer = attach(owner);
	struct door_place *place[DOOR_PLACES];

	(void)state;
	for (uint32_t i = 0; i < DOOR_PLACES; i++) {
		place[i] = door_claim(peer);
		assert_non_null(place[i]);
		for (uint32_t k = 0; k < i; k++)
			assert_ptr_not_equal(place[i], place[k]);
	}
	assert_null(door_claim(peer)); /* all are ours, and we live */
	door_release(place[17]);
	assert_ptr_equal(door_claim(peer), place[17]);
	door_drop(peer);
	door_drop(owner);
}

static void test_enter_shut_door_refused(void **state)
{
	struct door *owner = open_door(), *peer = attach(owner);
	struct door_place *place = door_claim(peer);

	(void)state;
	door_offer(owner, 0, 1, RW, 0x1000, 1);
	assert_true(door_enter(peer, place));
	door_leave(place);
	door_shut(owner);
	assert_false(door_enter(peer, place));
	assert_int_equal(atomic_load(&place->turn) % 2, 0);
	assert_false(door_allows(peer, 0, 1, RW, 0x1000, 1));
	assert_int_equal(door_settle(owner, in_ms(0), why, sizeof(why)), 0);
	door_drop(peer);
	door_drop(owner);
}

static void test_settle_waits_for_who_is_inside(void **state)
{
	struct door *owner = open_door(), *peer = attach(owner);
	struct door_place *place = door_claim(peer);
	uint64_t begin_ms = test_now_ms();
	char text[40];

	(void)state;
	assert_int_equal(door_settle(owner, in_ms(0), why, sizeof(why)), 0);
	assert_true(door_enter(peer, place));
	assert_int_equal(door_settle(owner, in_ms(50), why, sizeof(why)), -EBUSY);
	assert_in_range(test_now_ms() - begin_ms, 45, 5000);
	snprintf(text, sizeof(text), "process %d ", (int)getpid());
	assert_non_null(strstr(why, text));
	door_leave(place);
	assert_int_equal(door_settle(owner, in_ms(0), why, sizeof(why)), 0);
	door_drop(peer);
	door_drop(owner);
}

/* A process that enters and stays inside until it is killed. */
static pid_t stay_inside(struct door *owner)
{
	int pipes[2];
	pid_t pid;
	char byte;

	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		struct door *peer = NULL;
		unsigned char nonce[DOOR_NONCE];
		struct door_page *page = mmap(NULL, 4096, PROT_READ, MAP_SHARED, owner->fd, 0);

		/* The witness is not in a child. */
		memcpy(nonce, page->nonce, sizeof(nonce));
		if (door_attach(owner->fd, nonce, &peer, why, sizeof(why)) != 0 ||
		    !door_enter(peer, door_claim(peer)) || write(pipes[1], "x", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	assert_int_equal(read(pipes[0], &byte, 1), 1);
	close(pipes[0]);
	close(pipes[1]);
	return pid;
}

static void test_settle_passes_over_the_dead(void **state)
{
	struct door *owner = open_door(), *peer = attach(owner);
	pid_t pid = stay_inside(owner);
	struct door_place *place;

	(void)state;
	assert_int_equal(door_settle(owner, in_ms(30), why, sizeof(why)), -EBUSY);
	kill(pid, SIGSTOP); /* it could go on at any time */
	assert_int_equal(door_settle(owner, in_ms(30), why, sizeof(why)), -EBUSY);
	kill(pid, SIGKILL);
	/* A zombie is dead: nobody has waited for it yet. */
	assert_int_equal(door_settle(owner, in_ms(5000), why, sizeof(why)), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	assert_int_equal(door_settle(owner, in_ms(5000), why, sizeof(why)), 0);
	/* Its place is somebody's again, and nobody is inside then. */
	for (uint32_t i = 0; i < DOOR_PLACES; i++) {
		place = door_claim(peer);
		assert_non_null(place);
		assert_int_equal(atomic_load(&place->turn) % 2, 0);
	}
	door_drop(peer);
	door_drop(owner);
}

/* A number that was the dead one's and is another's now: told apart by when it was started. */
static void test_settle_knows_a_recycled_pid(void **state)
{
	struct door *owner = open_door(), *peer = attach(owner);
	struct door_place *place = door_claim(peer);

	(void)state;
	assert_true(door_enter(peer, place));
	atomic_store(&place->owner, peer->self ^ 1); /* our number, started at another time */
	assert_int_equal(door_settle(owner, in_ms(5000), why, sizeof(why)), 0);
	door_leave(place);
	door_drop(peer);
	door_drop(owner);
}

static void test_settle_with_any_contents_ends_in_time(void **state)
{
	struct door *owner = open_door(), *peer = attach(owner);
	uint64_t seed = test_seed(), begin_ms;

	(void)state;
	for (int round = 0; round < 200; round++) {
		for (uint32_t i = 0; i < DOOR_PLACES; i++) {
			atomic_store(&peer->page->place[i].turn, test_random(&seed));
			atomic_store(&peer->page->place[i].owner, test_random(&seed));
		}
		peer->page->places = (uint32_t)test_random(&seed);
		peer->page->buffers = (uint32_t)test_random(&seed);
		peer->page->heavy = (uint32_t)test_random(&seed);
		atomic_store(&peer->page->area_count, test_random(&seed));
		begin_ms = test_now_ms();
		door_settle(owner, in_ms(5), why, sizeof(why));
		assert_in_range(test_now_ms() - begin_ms, 0, 2000);
		door_areas_add(owner, &(struct door_area_copy){.addr = 1, .length = 1, .inode = 1, .fd = 1});
		door_offer(owner, (uint32_t)test_random(&seed), 1, RW, 1, 1);
	}
	door_drop(peer);
	door_drop(owner);
}

static void test_areas_are_read_whole(void **state)
{
	struct door *owner = open_door(), *peer = attach(owner);
	static struct door_area_copy areas[DOOR_AREAS];

	(void)state;
	assert_int_equal(door_areas_read(peer, areas), 0);
	door_areas_begin(owner);
	for (uint32_t i = 0; i < DOOR_AREAS + 10; i++)
		door_areas_add(owner, &(struct door_area_copy){i + 1, i + 2, i + 3, (int32_t)i});
	assert_int_equal(door_areas_read(peer, areas), 0); /* they are being changed */
	door_areas_end(owner);
	assert_int_equal(door_areas_read(peer, areas), DOOR_AREAS);
	assert_int_equal(areas[DOOR_AREAS - 1].addr, DOOR_AREAS);
	assert_int_equal(areas[5].length, 7);
	assert_int_equal(areas[5].inode, 8);
	assert_int_equal(areas[5].fd, 5);
	atomic_store(&peer->page->area_count, UINT64_MAX);
	assert_int_equal(door_areas_read(peer, areas), DOOR_AREAS);
	door_areas_begin(owner);
	door_areas_end(owner);
	assert_int_equal(door_areas_read(peer, areas), 0);
	door_drop(peer);
	door_drop(owner);
}

static void refused(int fd, const unsigned char *nonce, const char *reason)
{
	struct door *door = NULL;

	assert_true(door_attach(fd, nonce, &door, why, sizeof(why)) < 0);
	assert_null(door);
	if (strstr(why, reason) == NULL)
		fail_msg("\"%s\" does not say \"%s\"", why, reason);
}

static void test_attach_to_what_is_no_door_refused(void **state)
{
	struct door *owner = open_door();
	unsigned char nonce[DOOR_NONCE];
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING), pipes[2];

	(void)state;
	memcpy(nonce, owner->witness, sizeof(nonce));
	refused(-1, nonce, "no sealed memory");
	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	refused(pipes[0], nonce, "no sealed memory");
	assert_int_equal(ftruncate(fd, (off_t)owner->bytes), 0);
	refused(fd, nonce, "no sealed memory"); /* it could be shrunk under us */
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	refused(fd, nonce, "another nonce or layout");
	/* Everything as it should be but one thing. */
	assert_int_equal(pwrite(fd, owner->page, sizeof(*owner->page), 0), sizeof(*owner->page));
	{
		struct door *door = NULL;

		assert_int_equal(door_attach(fd, nonce, &door, why, sizeof(why)), 0);
		door->page->buffers = DOOR_BUFFERS_MAX; /* more than the memory holds */
		refused(fd, nonce, "another nonce or layout");
		door->page->buffers = UINT32_MAX;
		refused(fd, nonce, "another nonce or layout");
		door->page->buffers = BUFFERS;
		door->page->places = DOOR_PLACES * 2;
		refused(fd, nonce, "another nonce or layout");
		door->page->places = DOOR_PLACES;
		door->page->magic++;
		refused(fd, nonce, "another nonce or layout");
		door_drop(door);
	}
	nonce[3] ^= 1;
	refused(owner->fd, nonce, "another nonce or layout");
	close(fd);
	close(pipes[0]);
	close(pipes[1]);
	/* Memory that is shorter than a door. */
	fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	assert_int_equal(ftruncate(fd, 4096), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	refused(fd, nonce, "no sealed memory");
	close(fd);
	door_drop(owner);
}

static void test_door_cannot_be_shrunk(void **state)
{
	struct door *owner = open_door();

	(void)state;
	assert_int_equal(ftruncate(owner->fd, 0), -1);
	assert_int_equal(errno, EPERM);
	door_drop(owner);
}

static void test_find_own_by_nonce(void **state)
{
	struct door *a = open_door(), *b = open_door();
	unsigned char nonce[DOOR_NONCE];

	(void)state;
	memcpy(nonce, a->witness, sizeof(nonce));
	assert_ptr_equal(door_find_own(nonce), a);
	assert_ptr_equal(door_find_own(b->witness), b);
	door_drop(a);
	door_drop(b);
	door_drop(a); /* the one that was found */
	assert_null(door_find_own(nonce));
	door_drop(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_allows_only_what_is_offered),
		cmocka_unit_test(test_slots_beyond_the_table_are_nobodys),
		cmocka_unit_test(test_places_are_claimed_once_and_come_back),
		cmocka_unit_test(test_enter_shut_door_refused),
		cmocka_unit_test(test_settle_waits_for_who_is_inside),
		cmocka_unit_test(test_settle_passes_over_the_dead),
		cmocka_unit_test(test_settle_knows_a_recycled_pid),
		cmocka_unit_test(test_settle_with_any_contents_ends_in_time),
		cmocka_unit_test(test_areas_are_read_whole),
		cmocka_unit_test(test_attach_to_what_is_no_door_refused),
		cmocka_unit_test(test_door_cannot_be_shrunk),
		cmocka_unit_test(test_find_own_by_nonce),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
