/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of lwbench. */
#ifndef LWBENCH_OPTIONS_H
#define LWBENCH_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <lanewise/lanewise.h>

#define OPTIONS_BLOCKS 64
#define OPTIONS_SETTINGS 32
#define PART_ALIGN 4096u  /* a thread's part of the memory is a multiple, if it is longer */
#define OPTIONS_GATHER 64 /* most blocks a call of raw */

enum exit_code {
	EXIT_OK = 0,
	EXIT_FAILED = 1, /* transfers failed, or data was wrong */
	EXIT_USAGE = 2,
	EXIT_OPEN = 3, /* the engine or the target can't be opened */
};

enum command { COMMAND_TARGET, COMMAND_INITIATOR, COMMAND_RAW };

/* raw: what a side does when the socket has nothing for it. */
enum raw_wait {
	RAW_POLL,  /* nonblocking; sleeps in poll */
	RAW_SPIN,  /* nonblocking; calls again at once */
	RAW_BLOCK, /* blocking calls that return with the whole block */
};

struct options {
	enum command command;
	const char *target; /* name of the segment; "null://" */
	const char *listen; /* the engine's name; NULL: it finds one */
	const char *json;   /* file, "-" for standard output, NULL: none */
	uint64_t blocks[OPTIONS_BLOCKS];
	size_t block_count;
	uint64_t buffer_bytes;
	uint64_t count; /* requests of each thread; 0: by duration */
	uint64_t seed;
	uint32_t batch;
	uint32_t threads;
	uint32_t depth;
	uint32_t gather; /* raw: blocks a call */
	enum raw_wait wait;
	double duration_s; /* target: 0 until a signal */
	double rate;       /* requests a second of each thread; 0: as fast as it goes */
	uint8_t op;        /* enum lw_op */
	uint8_t priority;  /* enum lw_priority */
	bool validate;
	bool pin;
	bool progress;
	bool first;       /* time the opening and a first request */
	bool spin;        /* poll = busy: the application spins too */
	bool caller;      /* poll = caller */
	bool classic;     /* the reference's command line: its lines are printed too */
	const char *unit; /* classic: of the last line */
	int precision;    /* classic: digits of the last line */
	uint32_t timeout_ms;
	struct lw_setting settings[OPTIONS_SETTINGS];
	size_t settings_count;
	char *split[OPTIONS_SETTINGS]; /* copies of "name=value" that settings point into */
	size_t split_count;
};

/* Reads the command line. -1: go on; else the exit code to end with (help was printed, or the error named). The caller
 * gives *out back with options_free in either case. */
int options_parse(struct options *out, int argc, char **argv);

/* Fills *options with the defaults of a command. */
void options_defaults(struct options *options, enum command command);

/* What several options say together. -1: go on; else the exit code, and the error was named. */
int options_check(struct options *options);

/* Adds an engine setting. false: there are too many. Neither text is copied. */
bool options_set(struct options *options, const char *name, const char *value);

/* The value a setting was given, NULL when none. */
const char *options_get(const struct options *options, const char *name);

void options_free(struct options *options);

#endif
