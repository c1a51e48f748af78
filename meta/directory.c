/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/directory.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <time.h>

#include "lib/clock.h"
#include "lib/log.h"
#include "meta/json.h"

#define WHY_BYTES 320
#define PREFIX "mooncake/"
#define KEEP_MAX_S                                                                                                     \
	20 /* keys are looked after at least so often, whatever their lease: the store may be another one              \
	    */
#define RETRY_MIN_MS 100
#define RETRY_MAX_MS 2000
#define TWO_LIVES_MS 20 /* between two looks at documents that do not belong together */
#define DOUBT_MS 20     /* a store that is back has done by then what it was asked before */

enum job_kind { PUBLISH, FIND, PURGE };

struct job {
	TAILQ_ENTRY(job) link;
	enum job_kind kind;
	int holders; /* the thread, and who waits; the last one frees it */
	bool ended;
	uint64_t deadline_ns;
	uint64_t version; /* PUBLISH: at least this one */
	uint64_t incarnation;
	char name[LW_NAME_MAX];
	struct lw_directory_entry entry;
	int result;
	char why[WHY_BYTES];
	lw_directory_done done; /* NULL: somebody waits */
	void *arg;
};

struct lw_directory {
	pthread_mutex_t lock;
	pthread_cond_t work;  /* for the thread: a job, a change, the end */
	pthread_cond_t ended; /* for those who wait */
	TAILQ_HEAD(, job) jobs;
	bool closing;
	bool gone;         /* the thread has done its last work */
	bool abandoned;    /* nobody waits for the thread: it frees everything */
	bool asking;       /* the thread is inside document() */
	uint64_t version;  /* counts changes; 0: nothing is to be published yet */
	uint64_t next_ns;  /* when to look after the keys again */
	uint64_t close_ns; /* when the removal is to be over */
	bool started;      /* there is the thread */

	/* The thread's. */
	struct lw_store *store;
	uint64_t published; /* version that the store has; 0: none */
	bool attempted;     /* a put was tried: the store may have something of ours */
	bool taken;         /* the first puts have succeeded: later ones keep what is another's */
	bool contact_put;
	bool superseded;   /* another engine has the name */
	bool failing;      /* and was said so */
	uint32_t retry_ms; /* the last pause after a failure; 0: all is well */
	/* A put whose answer did not come may be applied later than one that was confirmed, and undo it. Until this
	 * time what was put is put again. */
	uint64_t doubt_ns;
	uint64_t expire_ns; /* when the contact's lease ends, as far as we know; UINT64_MAX: never */

	/* Constant. */
	pthread_t thread;
	uint32_t timeout_ms;
	uint32_t keep_ms;
	uint64_t lease_ms; /* 0: keys stay */
	uint64_t incarnation;
	int (*document)(void *arg, char **text, size_t *length);
	void *arg;
	char *contact;
	size_t contact_length;
	char prefix[LW_NAME_MAX + 16];
	char name[LW_NAME_MAX];
	char url[LW_NAME_MAX]; /* for messages */
};

static uint64_t after_ms(uint32_t ms)
{
	return lw_now_ns() + (uint64_t)ms * 1000000;
}

static uint32_t left_ms(uint64_t deadline_ns)
{
	uint64_t now_ns = lw_now_ns();

	return deadline_ns > now_ns ? (uint32_t)((deadline_ns - now_ns + 999999) / 1000000) : 0;
}

static void contact_key(const struct lw_directory *directory, const char *name, char key[LW_STORE_KEY_MAX])
{
	snprintf(key, LW_STORE_KEY_MAX, "%srpc_meta/%s", directory->prefix, name);
}

static void make_segment_key(const char *prefix, const char *name, char key[LW_STORE_KEY_MAX])
{
	snprintf(key, LW_STORE_KEY_MAX, "%s%s%s", prefix, strchr(name, '/') == NULL ? "ram/" : "", name);
}

static void segment_key(const struct lw_directory *directory, const char *name, char key[LW_STORE_KEY_MAX])
{
	make_segment_key(directory->prefix, name, key);
}

/* Our documents -------------------------------------------------------------------------------------------------------
 */

/* The document as it is now, and its version. -ESHUTDOWN: it is not to be asked for any more. */
static int make_document(struct lw_directory *directory, char **text, size_t *length, uint64_t *version)
{
	int error = -ESHUTDOWN;

	pthread_mutex_lock(&directory->lock);
	if (!directory->closing) {
		directory->asking = true;
		*version = directory->version;
		error = 0;
	}
	pthread_mutex_unlock(&directory->lock);
	if (error != 0)
		return error;
	error = directory->document(directory->arg, text, length);
	pthread_mutex_lock(&directory->lock);
	directory->asking = false;
	pthread_cond_broadcast(&directory->ended);
	pthread_mutex_unlock(&directory->lock);
	return error;
}

static int put(struct lw_directory *directory, const char *key, const char *text, size_t length, uint64_t deadline_ns,
	       char *why)
{
	const struct timespec pause = {.tv_nsec = DOUBT_MS * 1000000};
	enum lw_store_put how = directory->taken ? LW_STORE_KEEP : LW_STORE_TAKE;
	bool doubt = lw_now_ns() < directory->doubt_ns;
	int error;

	directory->attempted = true;
	error = lw_store_put(directory->store, key, text, length, how, left_ms(deadline_ns), why, WHY_BYTES);
	if (error == 0 && doubt) {
		nanosleep(&pause, NULL);
		error = lw_store_put(directory->store, key, text, length, how, left_ms(deadline_ns), why, WHY_BYTES);
	}
	if (error == -ETIMEDOUT || error == -ECONNRESET || error == -EPROTO)
		directory->doubt_ns = after_ms(directory->keep_ms);
	return error;
}

/* What the store no longer has, or may not have, is to be put. */
static void forget_lost(struct lw_directory *directory)
{
	uint64_t now_ns = lw_now_ns();

	if (now_ns < directory->doubt_ns || now_ns >= directory->expire_ns) {
		directory->published = 0;
		directory->contact_put = false;
	}
}

/* The contact's lease began when the call did that confirmed it. */
static void note_lease(struct lw_directory *directory, uint64_t begun_ns)
{
	directory->expire_ns = directory->lease_ms != 0 ? begun_ns + directory->lease_ms * 1000000 : UINT64_MAX;
}

/* Both documents, where the store does not have them as they are now. The segment goes first: who finds the contact
 * finds it, too. */
static int put_documents(struct lw_directory *directory, uint64_t deadline_ns, char *why)
{
	uint64_t version = 0, begun_ns;
	char key[LW_STORE_KEY_MAX], *text = NULL;
	size_t length;
	int error;

	forget_lost(directory);
	error = make_document(directory, &text, &length, &version);
	if (error != 0) {
		snprintf(why, WHY_BYTES, "no document could be made: %s", strerror(-error));
		return error;
	}
	if (version != directory->published) {
		segment_key(directory, directory->name, key);
		error = put(directory, key, text, length, deadline_ns, why);
		if (error == 0)
			directory->published = version;
	}
	free(text);
	if (error == 0 && !directory->contact_put) {
		begun_ns = lw_now_ns();
		contact_key(directory, directory->name, key);
		error = put(directory, key, directory->contact, directory->contact_length, deadline_ns, why);
		directory->contact_put = error == 0;
		if (error == 0)
			note_lease(directory, begun_ns);
	}
	if (error == 0)
		directory->taken = true;
	return error;
}

/* A longer life for one key. -ENOENT if it has to be put again. */
static int renew(struct lw_directory *directory, const char *key, uint64_t deadline_ns, char *why)
{
	return lw_store_renew(directory->store, key, left_ms(deadline_ns), why, WHY_BYTES);
}

static int renew_documents(struct lw_directory *directory, uint64_t deadline_ns, char *why)
{
	uint64_t begun_ns = lw_now_ns();
	char key[LW_STORE_KEY_MAX];
	int error;

	segment_key(directory, directory->name, key);
	error = renew(directory, key, deadline_ns, why);
	if (error == -ENOENT)
		directory->published = 0;
	else if (error != 0)
		return error;
	contact_key(directory, directory->name, key);
	error = renew(directory, key, deadline_ns, why);
	if (error == -ENOENT)
		directory->contact_put = false;
	else if (error != 0)
		return error;
	else
		note_lease(directory, begun_ns);
	return 0;
}

/* Tells the log what has changed, once. */
static void note_outcome(struct lw_directory *directory, int error, const char *why)
{
	if (error == -ESTALE && !directory->superseded)
		lw_log(LW_LOG_WARNING, "another engine has taken the name %s in %s; this one is not found by it now",
		       directory->name, directory->url);
	else if (error != 0 && error != -ESTALE && error != -ESHUTDOWN && !directory->failing)
		lw_log(LW_LOG_WARNING, "%s does not hold what %s offers, and is asked again: %s", directory->url,
		       directory->name, why);
	else if (error == 0 && (directory->failing || directory->superseded))
		lw_log(LW_LOG_WARNING, "%s holds what %s offers again", directory->url, directory->name);
	directory->superseded = error == -ESTALE;
	directory->failing = error != 0 && error != -ESTALE;
}

/* When to look after the keys again: a third of a lease after success, sooner after a failure or in doubt. */
static void plan(struct lw_directory *directory, int error)
{
	uint32_t wait_ms = directory->keep_ms;
	bool soon = (error != 0 && error != -ESTALE) || lw_now_ns() < directory->doubt_ns;

	if (soon) {
		uint32_t longest_ms = wait_ms < RETRY_MAX_MS ? wait_ms : RETRY_MAX_MS;

		wait_ms = directory->retry_ms == 0 ? RETRY_MIN_MS : directory->retry_ms * 2;
		wait_ms = wait_ms < longest_ms ? wait_ms : longest_ms;
	}
	directory->retry_ms = soon ? wait_ms : 0;
	pthread_mutex_lock(&directory->lock);
	directory->next_ns = after_ms(wait_ms);
	pthread_mutex_unlock(&directory->lock);
}

static bool is_put(struct lw_directory *directory)
{
	uint64_t version;

	pthread_mutex_lock(&directory->lock);
	version = directory->version;
	pthread_mutex_unlock(&directory->lock);
	return directory->published == version && directory->contact_put;
}

/* Looks after the keys when it is time for it. */
static void keep(struct lw_directory *directory)
{
	uint64_t deadline_ns = after_ms(directory->timeout_ms);
	char why[WHY_BYTES] = "";
	int error = 0;

	forget_lost(directory);
	if (is_put(directory))
		error = renew_documents(directory, deadline_ns, why);
	if (error == 0 && !is_put(directory))
		error = put_documents(directory, deadline_ns, why);
	note_outcome(directory, error, why);
	plan(directory, error);
}

static void remove_documents(struct lw_directory *directory)
{
	char key[LW_STORE_KEY_MAX], why[WHY_BYTES];

	if (!directory->attempted)
		return;
	contact_key(directory, directory->name, key);
	(void)lw_store_remove(directory->store, key, directory->incarnation, left_ms(directory->close_ns), why,
			      sizeof(why));
	segment_key(directory, directory->name, key);
	(void)lw_store_remove(directory->store, key, directory->incarnation, left_ms(directory->close_ns), why,
			      sizeof(why));
}

/* Jobs ----------------------------------------------------------------------------------------------------------------
 */

static int publish(struct lw_directory *directory, struct job *job)
{
	int error;

	if (directory->published >= job->version && directory->contact_put)
		return 0; /* somebody else's put had it */
	error = put_documents(directory, job->deadline_ns, job->why);
	note_outcome(directory, error, job->why);
	plan(directory, error);
	return error;
}

/* There is no contact: a segment of files has none, and its document is enough. -ENOENT leaves job->why as it is. */
static int look_up_alone(struct lw_directory *directory, struct job *job)
{
	struct lw_directory_entry entry = {.contact = {.incarnation = 0}};
	char key[LW_STORE_KEY_MAX], why[WHY_BYTES];
	int error;

	segment_key(directory, job->name, key);
	error = lw_store_get(directory->store, key, left_ms(job->deadline_ns), &entry.document, &entry.length, why,
			     WHY_BYTES);
	if (error == 0)
		job->entry = entry;
	else if (error != -ENOENT)
		memcpy(job->why, why, WHY_BYTES);
	return error;
}

/* 0; -EAGAIN: they are of two lives, a moment later they may not be. */
static int look_up(struct lw_directory *directory, struct job *job)
{
	char key[LW_STORE_KEY_MAX], reason[200], *text = NULL;
	struct lw_directory_entry entry;
	uint64_t owner;
	size_t length;
	int error;

	contact_key(directory, job->name, key);
	error = lw_store_get(directory->store, key, left_ms(job->deadline_ns), &text, &length, job->why, WHY_BYTES);
	if (error == -ENOENT)
		return look_up_alone(directory, job);
	if (error != 0)
		return error;
	error = lw_contact_decode(text, length, &entry.contact, reason, sizeof(reason));
	free(text);
	if (error != 0) {
		snprintf(job->why, WHY_BYTES, "%s holds a document that can't be used under \"%.80s\": %s",
			 directory->url, key, reason);
		return error;
	}
	segment_key(directory, job->name, key);
	error = lw_store_get(directory->store, key, left_ms(job->deadline_ns), &entry.document, &entry.length, job->why,
			     WHY_BYTES);
	if (error != 0)
		return error;
	owner = lw_store_owner(entry.document, entry.length);
	if (owner != entry.contact.incarnation) {
		free(entry.document);
		snprintf(job->why, WHY_BYTES, "the two documents of \"%s\" in %s are not of one engine", job->name,
			 directory->url);
		return -EAGAIN;
	}
	job->entry = entry;
	return 0;
}

static int find(struct lw_directory *directory, struct job *job)
{
	const struct timespec pause = {.tv_nsec = TWO_LIVES_MS * 1000000};
	int error;

	for (int tries = 0;; tries++) {
		error = look_up(directory, job);
		if (error != -EAGAIN)
			return error;
		if (tries == 3 || left_ms(job->deadline_ns) <= TWO_LIVES_MS)
			return -ESTALE;
		nanosleep(&pause, NULL);
	}
}

static int purge(struct lw_directory *directory, struct job *job)
{
	char key[LW_STORE_KEY_MAX];
	int contact, segment;

	contact_key(directory, job->name, key);
	contact = lw_store_remove(directory->store, key, job->incarnation, left_ms(job->deadline_ns), job->why,
				  WHY_BYTES);
	if (contact != 0 && contact != -ENOENT)
		return contact;
	segment_key(directory, job->name, key);
	segment = lw_store_remove(directory->store, key, job->incarnation, left_ms(job->deadline_ns), job->why,
				  WHY_BYTES);
	return segment == -ENOENT ? contact : segment;
}

/* Under the lock. */
static void drop_job(struct job *job)
{
	if (--job->holders != 0)
		return;
	free(job->entry.document);
	free(job);
}

static void end_job(struct lw_directory *directory, struct job *job, int result)
{
	if (job->done != NULL) {
		job->done(job->arg, result, &job->entry, job->why);
		job->entry.document = NULL;
	}
	pthread_mutex_lock(&directory->lock);
	job->result = result;
	job->ended = true;
	pthread_cond_broadcast(&directory->ended);
	drop_job(job);
	pthread_mutex_unlock(&directory->lock);
}

static void run_job(struct lw_directory *directory, struct job *job)
{
	int result;

	if (left_ms(job->deadline_ns) == 0) {
		snprintf(job->why, sizeof(job->why), "%s was busy with other calls", directory->url);
		result = -ETIMEDOUT;
	} else if (job->kind == PUBLISH) {
		result = publish(directory, job);
	} else if (job->kind == FIND) {
		result = find(directory, job);
	} else {
		result = purge(directory, job);
	}
	end_job(directory, job, result);
}

/* The thread ----------------------------------------------------------------------------------------------------------
 */

static void free_directory(struct lw_directory *directory)
{
	lw_store_close(directory->store); /* NULL is fine */
	free(directory->contact);
	pthread_mutex_destroy(&directory->lock);
	pthread_cond_destroy(&directory->work);
	pthread_cond_destroy(&directory->ended);
	free(directory);
}

/* The next job; NULL: it is time to look after the keys, or for the end. The keys go first: a stream of jobs must not
 * let their leases end. Takes the lock. */
static struct job *wait_for_work(struct lw_directory *directory, bool *closing)
{
	struct job *job = NULL;

	pthread_mutex_lock(&directory->lock);
	while (TAILQ_EMPTY(&directory->jobs) && !directory->closing && lw_now_ns() < directory->next_ns) {
		const struct timespec until = {.tv_sec = (time_t)(directory->next_ns / 1000000000),
					       .tv_nsec = (long)(directory->next_ns % 1000000000)};

		pthread_cond_timedwait(&directory->work, &directory->lock, &until);
	}
	*closing = directory->closing;
	if (*closing || lw_now_ns() < directory->next_ns)
		job = TAILQ_FIRST(&directory->jobs);
	if (job != NULL)
		TAILQ_REMOVE(&directory->jobs, job, link);
	pthread_mutex_unlock(&directory->lock);
	return job;
}

static void *run(void *arg)
{
	struct lw_directory *directory = arg;
	bool closing = false, abandoned;
	struct job *job;

	pthread_setname_np(pthread_self(), "lw-store");
	for (;;) {
		job = wait_for_work(directory, &closing);
		if (job != NULL && closing)
			end_job(directory, job, -ESHUTDOWN);
		else if (job != NULL)
			run_job(directory, job);
		else if (closing)
			break;
		else
			keep(directory);
	}
	remove_documents(directory);
	pthread_mutex_lock(&directory->lock);
	directory->gone = true;
	pthread_cond_broadcast(&directory->ended);
	abandoned = directory->abandoned;
	pthread_mutex_unlock(&directory->lock);
	if (abandoned)
		free_directory(directory);
	return NULL;
}

static int start(struct lw_directory *directory)
{
	sigset_t all, old;
	int error;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	error = pthread_create(&directory->thread, NULL, run, directory);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return -error;
}

static void init_locks(struct lw_directory *directory)
{
	pthread_condattr_t attr;

	pthread_mutex_init(&directory->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC); /* steps of the wall clock don't count */
	pthread_cond_init(&directory->work, &attr);
	pthread_cond_init(&directory->ended, &attr);
	pthread_condattr_destroy(&attr);
}

/* "mooncake/", or "mooncake/<cluster>/" with exactly one slash behind it. */
static void make_prefix(const char *cluster, char *prefix, size_t size)
{
	size_t length = strlen(cluster);

	snprintf(prefix, size, PREFIX "%s%s", cluster, length > 0 && cluster[length - 1] != '/' ? "/" : "");
}

void lw_directory_segment_key(const char *cluster, const char *name, char key[LW_STORE_KEY_MAX])
{
	char prefix[LW_NAME_MAX + 16];

	make_prefix(cluster, prefix, sizeof(prefix));
	make_segment_key(prefix, name, key);
}

static int check_name(const char *name, char *why, size_t why_size)
{
	if (name[0] != '\0' && strnlen(name, LW_NAME_MAX) < LW_NAME_MAX && lw_is_printable(name))
		return 0;
	snprintf(why, why_size, "a name of a segment has 1 to %d bytes, and no control characters", LW_NAME_MAX - 1);
	return -EINVAL;
}

int lw_directory_open(const struct lw_directory_opts *opts, struct lw_directory **out, char *why, size_t why_size)
{
	struct lw_directory *directory;
	int error;

	if (strlen(opts->cluster) + sizeof(PREFIX) + 1 > sizeof(directory->prefix) || !lw_is_printable(opts->cluster)) {
		snprintf(why, why_size, "the cluster's name is longer than %d bytes, or has control characters",
			 LW_NAME_MAX);
		return -EINVAL;
	}
	directory = calloc(1, sizeof(*directory));
	if (directory == NULL) {
		snprintf(why, why_size, "no memory");
		return -ENOMEM;
	}
	init_locks(directory);
	TAILQ_INIT(&directory->jobs);
	directory->next_ns = UINT64_MAX;
	directory->expire_ns = UINT64_MAX;
	directory->timeout_ms = opts->timeout_ms;
	directory->keep_ms = (opts->store.lease_s != 0 && opts->store.lease_s / 3 < KEEP_MAX_S)
				     ? opts->store.lease_s * 1000 / 3
				     : KEEP_MAX_S * 1000;
	directory->lease_ms = (uint64_t)opts->store.lease_s * 1000;
	directory->incarnation = opts->store.incarnation;
	directory->document = opts->document;
	directory->arg = opts->arg;
	make_prefix(opts->cluster, directory->prefix, sizeof(directory->prefix));
	/* Without what may hold a secret. */
	snprintf(directory->url, sizeof(directory->url), "%.*s", (int)strcspn(opts->url, "?"), opts->url);
	error = lw_store_open(opts->url, &opts->store, &directory->store, why, why_size);
	if (error != 0) {
		free_directory(directory);
		return error;
	}
	*out = directory;
	return 0;
}

/* Calls ---------------------------------------------------------------------------------------------------------------
 */

static struct job *new_job(enum job_kind kind, const char *name, uint32_t timeout_ms)
{
	struct job *job = calloc(1, sizeof(*job));

	if (job == NULL)
		return NULL;
	job->kind = kind;
	job->holders = 1;
	job->deadline_ns = after_ms(timeout_ms);
	snprintf(job->name, sizeof(job->name), "%s", name);
	return job;
}

/* 0, or -ESHUTDOWN: the job is the caller's still. */
static int hand_over(struct lw_directory *directory, struct job *job)
{
	int error = -ESHUTDOWN;

	pthread_mutex_lock(&directory->lock);
	if (!directory->closing) {
		if (job->kind == PUBLISH)
			job->version = ++directory->version;
		TAILQ_INSERT_TAIL(&directory->jobs, job, link);
		pthread_cond_signal(&directory->work);
		error = 0;
	}
	pthread_mutex_unlock(&directory->lock);
	return error;
}

/* Waits for the job's end, or its deadline. *entry NULL: nobody wants it. */
static int wait_for(struct lw_directory *directory, struct job *job, struct lw_directory_entry *entry, char *why,
		    size_t why_size)
{
	const struct timespec until = {.tv_sec = (time_t)(job->deadline_ns / 1000000000),
				       .tv_nsec = (long)(job->deadline_ns % 1000000000)};
	int error = 0;

	job->holders = 2;
	if (hand_over(directory, job) != 0) {
		snprintf(why, why_size, "the engine is being closed");
		free(job);
		return -ESHUTDOWN;
	}
	pthread_mutex_lock(&directory->lock);
	while (!job->ended && !directory->closing && error == 0)
		error = pthread_cond_timedwait(&directory->ended, &directory->lock, &until);
	if (job->ended) {
		error = job->result;
		snprintf(why, why_size, "%s", job->why);
		if (error == 0 && entry != NULL) {
			*entry = job->entry;
			job->entry.document = NULL;
		}
	} else if (directory->closing) {
		error = -ESHUTDOWN;
		snprintf(why, why_size, "the engine is being closed");
	} else {
		error = -ETIMEDOUT;
		snprintf(why, why_size, "%s did not answer in time", directory->url);
	}
	drop_job(job);
	pthread_mutex_unlock(&directory->lock);
	return error;
}

static int no_memory(char *why, size_t why_size)
{
	snprintf(why, why_size, "no memory");
	return -ENOMEM;
}

int lw_directory_publish(struct lw_directory *directory, uint32_t timeout_ms, char *why, size_t why_size)
{
	struct job *job = new_job(PUBLISH, "", timeout_ms);

	return job != NULL ? wait_for(directory, job, NULL, why, why_size) : no_memory(why, why_size);
}

int lw_directory_begin(struct lw_directory *directory, const char *name, const struct lw_contact *contact, char *why,
		       size_t why_size)
{
	int error = check_name(name, why, why_size);

	if (error != 0)
		return error;
	if (lw_contact_encode(contact, &directory->contact, &directory->contact_length) != 0)
		return no_memory(why, why_size);
	snprintf(directory->name, sizeof(directory->name), "%s", name);
	error = start(directory);
	if (error != 0) {
		snprintf(why, why_size, "no thread for the metadata store: %s", strerror(-error));
		return error;
	}
	directory->started = true;
	return lw_directory_publish(directory, directory->timeout_ms, why, why_size);
}

void lw_directory_touch(struct lw_directory *directory)
{
	pthread_mutex_lock(&directory->lock);
	directory->version++;
	directory->next_ns = 0;
	pthread_cond_signal(&directory->work);
	pthread_mutex_unlock(&directory->lock);
}

int lw_directory_find(struct lw_directory *directory, const char *name, uint32_t timeout_ms,
		      struct lw_directory_entry *out, char *why, size_t why_size)
{
	int error = check_name(name, why, why_size);
	struct job *job;

	if (error != 0)
		return error;
	job = new_job(FIND, name, timeout_ms);
	return job != NULL ? wait_for(directory, job, out, why, why_size) : no_memory(why, why_size);
}

int lw_directory_find_async(struct lw_directory *directory, const char *name, uint32_t timeout_ms,
			    lw_directory_done done, void *arg)
{
	struct job *job = new_job(FIND, name, timeout_ms);
	int error;

	if (job == NULL)
		return -ENOMEM;
	job->done = done;
	job->arg = arg;
	error = hand_over(directory, job);
	if (error != 0)
		free(job);
	return error;
}

int lw_directory_purge(struct lw_directory *directory, const char *name, uint64_t incarnation, uint32_t timeout_ms,
		       char *why, size_t why_size)
{
	int error = check_name(name, why, why_size);
	struct job *job;

	if (error != 0)
		return error;
	job = new_job(PURGE, name, timeout_ms);
	if (job == NULL)
		return no_memory(why, why_size);
	job->incarnation = incarnation;
	return wait_for(directory, job, NULL, why, why_size);
}

void lw_directory_refuse(struct lw_directory *directory, uint32_t timeout_ms)
{
	if (directory == NULL)
		return;
	pthread_mutex_lock(&directory->lock);
	directory->closing = true;
	directory->close_ns = after_ms(timeout_ms);
	pthread_cond_signal(&directory->work);
	pthread_cond_broadcast(&directory->ended);
	pthread_mutex_unlock(&directory->lock);
}

void lw_directory_close(struct lw_directory *directory)
{
	struct timespec until;
	bool gone;

	if (directory == NULL)
		return;
	if (!directory->started) {
		free_directory(directory);
		return;
	}
	pthread_mutex_lock(&directory->lock);
	until.tv_sec = (time_t)(directory->close_ns / 1000000000);
	until.tv_nsec = (long)(directory->close_ns % 1000000000);
	/* What it asks the engine for is made without waiting: it is not left while it is at that. */
	while (directory->asking)
		pthread_cond_wait(&directory->ended, &directory->lock);
	while (!directory->gone && pthread_cond_timedwait(&directory->ended, &directory->lock, &until) != ETIMEDOUT)
		;
	gone = directory->gone;
	directory->abandoned = !gone;
	if (!gone) {
		lw_log(LW_LOG_WARNING, "%s does not answer: what %s has there stays until its lease ends",
		       directory->url, directory->name);
		pthread_detach(directory->thread);
	}
	pthread_mutex_unlock(&directory->lock);
	if (!gone)
		return; /* it may be freed already */
	pthread_join(directory->thread, NULL);
	free_directory(directory);
}

void lw_directory_forked(struct lw_directory *directory)
{
	lw_store_forked(directory->store);
}
