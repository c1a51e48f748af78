/* SPDX-License-Identifier: Apache-2.0 */
/* The etcd client, over the requests of etcd.c. In their JSON keys and values are base64, 64-bit numbers are texts, and
 * what is zero is left out.
 *
 * All keys of a store hang on one lease, which is granted with the first put. A guarded call compares and acts in one
 * transaction. It succeeds at once if the key hangs on our lease, which shows that it is ours and costs no value; else
 * it brings the value, of which we see whose it is, and a second one acts if that revision is still there.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "meta/base64.h"
#include "meta/etcd.h"
#include "meta/store_pvt.h"

#define SLACK_BYTES 65536    /* what an answer has beside the value */
#define MAX_ROUNDS 4         /* of a transaction that others get in the way of */
#define NUMBER_MAX 24        /* a 64-bit number as text */
#define LEASE_GONE (-ENOLCK) /* among ourselves: the lease has expired, or etcd has lost its data */

struct etcd {
	struct lw_store base;
	struct lw_etcd *cluster;
	char lease[NUMBER_MAX]; /* "": none is granted */
};

/* What is at a key. */
struct entry {
	char revision[NUMBER_MAX]; /* of its last change; "0": there is no such key */
	struct lw_store_value value;
};

/* Requests ------------------------------------------------------------------------------------------------------------
 */

/* What a request is about. */
struct subject {
	const char *key;
	const char *value;
	size_t length;
	const char *revision;
};

/* The JSON of a template, in which ' is a quote, $ the key, @ the value, % the lease and # the revision. At most four
 * of each, one value. The caller frees it. */
static char *compose(const struct etcd *etcd, const char *template, const struct subject *subject, size_t *size)
{
	size_t key_length = strlen(subject->key);
	char *text = malloc(strlen(template) + 4 * (LW_BASE64_LENGTH(key_length) + 2 * NUMBER_MAX) +
			    LW_BASE64_LENGTH(subject->length));
	char *at = text;

	for (; at != NULL && *template != '\0'; template ++) {
		switch (*template) {
		case '$':
			at = lw_base64_encode(subject->key, key_length, at);
			break;
		case '@':
			at = lw_base64_encode(subject->value, subject->length, at);
			break;
		case '%':
			at = stpcpy(at, etcd->lease[0] != '\0' ? etcd->lease : "0");
			break;
		case '#':
			at = stpcpy(at, subject->revision);
			break;
		default:
			*at++ = *template == '\'' ? '"' : *template;
		}
	}
	*size = (size_t)(at - text);
	return text;
}

static int ask(struct etcd *etcd, const char *path, const char *template, const struct subject *subject, cJSON **out,
	       const struct lw_store_call *call)
{
	size_t size;
	char *body = compose(etcd, template, subject, &size);
	int ret;

	if (body == NULL)
		return lw_store_fail(call, -ENOMEM, "no memory for a request to etcd");
	ret = lw_etcd_ask(etcd->cluster, path, body, size, out, call);
	free(body);
	return ret == -ENOENT ? LEASE_GONE : ret;
}

/* Answers -------------------------------------------------------------------------------------------------------------
 */

static const cJSON *field(const cJSON *object, const char *key)
{
	return cJSON_GetObjectItemCaseSensitive(object, key);
}

/* A 64-bit number, which is not negative and not zero, as the text that it is. */
static bool get_number(const cJSON *item, char out[NUMBER_MAX])
{
	size_t length;

	if (!cJSON_IsString(item))
		return false;
	length = strlen(item->valuestring);
	if (length == 0 || length >= NUMBER_MAX - 4 || strspn(item->valuestring, "0123456789") != length ||
	    item->valuestring[0] == '0')
		return false;
	memcpy(out, item->valuestring, length + 1);
	return true;
}

static int odd_answer(const struct etcd *etcd, const struct lw_store_call *call)
{
	return lw_store_fail(call, -EPROTO, "%s: an odd answer", lw_etcd_name(etcd->cluster));
}

static int no_key(const struct etcd *etcd, const char *key, const struct lw_store_call *call)
{
	return lw_store_fail(call, -ENOENT, "%s has no key \"%s\"", lw_etcd_name(etcd->cluster), key);
}

/* The answer to a range of one key. The caller frees the entry's value. */
static int take_entry(const struct etcd *etcd, const cJSON *range, const char *key, struct entry *out,
		      const struct lw_store_call *call)
{
	const cJSON *list = field(range, "kvs"), *kv, *name, *value;
	char name_text[LW_BASE64_LENGTH(LW_STORE_KEY_MAX) + 1];
	const char *text = "";
	size_t length;
	int ret;

	if (!cJSON_IsObject(range) || (list != NULL && !cJSON_IsArray(list)))
		return odd_answer(etcd, call);
	memset(out, 0, sizeof(*out));
	kv = cJSON_GetArrayItem(list, 0);
	if (kv == NULL) {
		memcpy(out->revision, "0", 2);
		return 0;
	}
	*lw_base64_encode(key, strlen(key), name_text) = '\0';
	name = field(kv, "key");
	value = field(kv, "value");
	if (!cJSON_IsString(name) || strcmp(name->valuestring, name_text) != 0 ||
	    (value != NULL && !cJSON_IsString(value)) || !get_number(field(kv, "mod_revision"), out->revision))
		return odd_answer(etcd, call);
	if (value != NULL)
		text = value->valuestring;
	length = strlen(text);
	if (length / 4 * 3 > etcd->base.max_value + 3) /* with its newline, and padding */
		return lw_store_fail(call, -EMSGSIZE, "%s: the value of \"%s\" has more than %zu bytes",
				     lw_etcd_name(etcd->cluster), key, etcd->base.max_value);
	out->value.text = malloc(length / 4 * 3 + 1);
	if (out->value.text == NULL)
		return lw_store_fail(call, -ENOMEM, "no memory for the value of \"%s\"", key);
	ret = lw_base64_decode(text, length, out->value.text, &out->value.length);
	if (ret < 0) {
		free(out->value.text);
		out->value.text = NULL;
		return odd_answer(etcd, call);
	}
	out->value.text[out->value.length] = '\0';
	return 0;
}

static int range(struct etcd *etcd, const char *key, struct entry *out, const struct lw_store_call *call)
{
	const struct subject subject = {.key = key};
	cJSON *json = NULL;
	int ret = ask(etcd, "kv/range", "{'key':'$'}", &subject, &json, call);

	if (ret < 0)
		return ret == LEASE_GONE ? odd_answer(etcd, call) : ret;
	ret = take_entry(etcd, json, key, out, call);
	cJSON_Delete(json);
	return ret;
}

/* 1: it has acted. 0: it has not, and *out says what is there; the caller frees its value. */
static int transact(struct etcd *etcd, const char *template, const struct subject *subject, struct entry *out,
		    const struct lw_store_call *call)
{
	const cJSON *succeeded;
	cJSON *json = NULL;
	int ret = ask(etcd, "kv/txn", template, subject, &json, call);

	if (ret < 0)
		return ret;
	succeeded = field(json, "succeeded");
	if (cJSON_IsTrue(succeeded))
		ret = 1;
	else if (succeeded != NULL && !cJSON_IsFalse(succeeded))
		ret = odd_answer(etcd, call);
	else
		ret = take_entry(etcd, field(cJSON_GetArrayItem(field(json, "responses"), 0), "response_range"),
				 subject->key, out, call);
	cJSON_Delete(json);
	return ret;
}

/* Guarded changes -----------------------------------------------------------------------------------------------------
 */

enum change { CHANGE_PUT, CHANGE_RENEW, CHANGE_REMOVE };

#define IF_OUR_LEASE "{'compare':[{'key':'$','target':'LEASE','result':'EQUAL','lease':'%'}],'success':["
#define IF_REVISION "{'compare':[{'key':'$','target':'MOD','result':'EQUAL','mod_revision':'#'}],'success':["
#define ELSE_RANGE "],'failure':[{'request_range':{'key':'$'}}]}"
#define PUT "{'request_put':{'key':'$','value':'@','lease':'%'}}"
#define RENEW "{'request_put':{'key':'$','ignore_value':true,'lease':'%'}}"
#define REMOVE "{'request_delete_range':{'key':'$'}}"

/* A renewal has nothing to do where the key hangs on our lease. */
static const char *const by_lease[] = {IF_OUR_LEASE PUT ELSE_RANGE, IF_OUR_LEASE ELSE_RANGE,
				       IF_OUR_LEASE REMOVE ELSE_RANGE};
static const char *const by_revision[] = {IF_REVISION PUT ELSE_RANGE, IF_REVISION RENEW ELSE_RANGE,
					  IF_REVISION REMOVE ELSE_RANGE};

static int change(struct etcd *etcd, enum change what, const struct subject *subject, uint64_t incarnation,
		  const struct lw_store_call *call)
{
	struct subject at = *subject;
	struct entry entry = {.revision = ""};
	bool held, found;
	int ret, round;

	if (etcd->lease[0] != '\0' && incarnation == etcd->base.incarnation)
		ret = transact(etcd, by_lease[what], &at, &entry, call);
	else
		ret = range(etcd, at.key, &entry, call);
	for (round = 0; ret == 0 && round < MAX_ROUNDS; round++) {
		found = strcmp(entry.revision, "0") != 0;
		held = found && lw_store_held(entry.value.text, entry.value.length, incarnation);
		free(entry.value.text);
		if (!found && what != CHANGE_PUT)
			return no_key(etcd, at.key, call);
		if (found && !held)
			return lw_store_fail(call, -ESTALE, "%s: \"%s\" belongs to another engine",
					     lw_etcd_name(etcd->cluster), at.key);
		if (what == CHANGE_RENEW && etcd->base.lease_s == 0)
			return 0;
		at.revision = entry.revision;
		ret = transact(etcd, by_revision[what], &at, &entry, call);
	}
	if (ret == 0) {
		free(entry.value.text);
		return lw_store_fail(call, -EIO, "%s: others change \"%s\" all the time", lw_etcd_name(etcd->cluster),
				     at.key);
	}
	return ret < 0 ? ret : 0;
}

static int grant(struct etcd *etcd, const struct lw_store_call *call)
{
	const struct subject subject = {.key = ""};
	char template[64];
	cJSON *json = NULL;
	int ret;

	snprintf(template, sizeof(template), "{'TTL':'%" PRIu32 "'}", etcd->base.lease_s);
	ret = ask(etcd, "lease/grant", template, &subject, &json, call);
	if (ret < 0)
		return ret;
	if (!get_number(field(json, "ID"), etcd->lease)) {
		etcd->lease[0] = '\0';
		ret = odd_answer(etcd, call);
	}
	cJSON_Delete(json);
	return ret;
}

/* Keeps our lease, or forgets it if it is gone. */
static int keep_alive(struct etcd *etcd, const struct lw_store_call *call)
{
	const struct subject subject = {.key = ""};
	char left[NUMBER_MAX];
	cJSON *json = NULL;
	int ret = ask(etcd, "lease/keepalive", "{'ID':'%'}", &subject, &json, call);

	if (ret == LEASE_GONE) {
		etcd->lease[0] = '\0';
		return 0;
	}
	if (ret < 0)
		return ret;
	if (!cJSON_IsObject(field(json, "result")))
		ret = odd_answer(etcd, call);
	else if (!get_number(field(field(json, "result"), "TTL"), left))
		etcd->lease[0] = '\0';
	cJSON_Delete(json);
	return ret;
}

/* What hangs on a lease: with a new one, twice if need be, since the one we know may be gone. */
static int with_lease(struct etcd *etcd, enum change what, const struct subject *subject, enum lw_store_put how,
		      const struct lw_store_call *call)
{
	cJSON *json = NULL;
	int ret, tries;

	for (tries = 0; tries < 2; tries++) {
		ret = etcd->base.lease_s != 0 && etcd->lease[0] == '\0' ? grant(etcd, call) : 0;
		if (ret < 0)
			break;
		if (what == CHANGE_PUT && how == LW_STORE_TAKE) {
			ret = ask(etcd, "kv/put", "{'key':'$','value':'@','lease':'%'}", subject, &json, call);
			if (ret == 0)
				cJSON_Delete(json);
		} else {
			ret = change(etcd, what, subject, etcd->base.incarnation, call);
		}
		if (ret != LEASE_GONE)
			return ret;
		etcd->lease[0] = '\0';
	}
	return ret == LEASE_GONE ? -EIO : ret; /* the sentence is etcd's */
}

/* The client ----------------------------------------------------------------------------------------------------------
 */

static int etcd_get(struct lw_store *store, const char *key, struct lw_store_value *out,
		    const struct lw_store_call *call)
{
	struct etcd *etcd = (struct etcd *)store;
	struct entry entry = {.revision = ""};
	int ret = range(etcd, key, &entry, call);

	if (ret < 0)
		return ret;
	if (strcmp(entry.revision, "0") == 0)
		return no_key(etcd, key, call);
	*out = entry.value;
	return 0;
}

static int etcd_put(struct lw_store *store, const char *key, const char *value, size_t length, enum lw_store_put how,
		    const struct lw_store_call *call)
{
	const struct subject subject = {.key = key, .value = value, .length = length};

	return with_lease((struct etcd *)store, CHANGE_PUT, &subject, how, call);
}

static int etcd_renew(struct lw_store *store, const char *key, const struct lw_store_call *call)
{
	const struct subject subject = {.key = key};
	struct etcd *etcd = (struct etcd *)store;
	int ret = etcd->lease[0] != '\0' ? keep_alive(etcd, call) : 0;

	return ret < 0 ? ret : with_lease(etcd, CHANGE_RENEW, &subject, LW_STORE_KEEP, call);
}

static int etcd_remove(struct lw_store *store, const char *key, uint64_t incarnation, const struct lw_store_call *call)
{
	const struct subject subject = {.key = key};
	struct etcd *etcd = (struct etcd *)store;
	int ret = change(etcd, CHANGE_REMOVE, &subject, incarnation, call);

	return ret == LEASE_GONE ? odd_answer(etcd, call) : ret;
}

static void etcd_close(struct lw_store *store)
{
	struct etcd *etcd = (struct etcd *)store;

	lw_etcd_close(etcd->cluster);
	free(etcd);
}

static int etcd_open(const char *url, const char *rest, const struct lw_store_options *options, struct lw_store **out,
		     const struct lw_store_call *call)
{
	struct etcd *etcd = calloc(1, sizeof(*etcd));
	int ret;

	(void)url;
	if (etcd == NULL)
		return lw_store_fail(call, -ENOMEM, "no memory for the etcd client");
	ret = lw_etcd_open(rest, LW_BASE64_LENGTH(options->max_value) + SLACK_BYTES, &etcd->cluster, call);
	if (ret < 0) {
		etcd_close(&etcd->base);
		return ret;
	}
	*out = &etcd->base;
	return 0;
}

static void etcd_forked(struct lw_store *store)
{
	lw_etcd_forked(((struct etcd *)store)->cluster);
}

const struct lw_store_ops lw_store_etcd_ops = {
	.size = sizeof(struct lw_store_ops),
	.scheme = "etcd",
	.form = "etcd://HOST[:PORT][,HOST[:PORT]...]",
	.newline = true,
	.open = etcd_open,
	.get = etcd_get,
	.put = etcd_put,
	.renew = etcd_renew,
	.remove = etcd_remove,
	.close = etcd_close,
	.forked = etcd_forked,
};
