/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/note.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "meta/base64.h"
#include "meta/json.h"

/* Bytes that a text of JSON can't hold, in words of letters. */
static bool add_exact(cJSON *ours, const char *key, const char *bytes, size_t size)
{
	char *text = malloc(LW_BASE64_LENGTH(size) + 1);
	bool added = false;

	if (text != NULL) {
		*lw_base64_encode(bytes, size, text) = '\0';
		added = cJSON_AddStringToObject(ours, key, text) != NULL;
	}
	free(text);
	return added;
}

static bool has_nul(const char *bytes, size_t size)
{
	return size != 0 && memchr(bytes, 0, size) != NULL;
}

bool lw_note_is_plain(const struct lw_note *note)
{
	return !has_nul(note->name, note->name_size) && !has_nul(note->text, note->text_size);
}

/* {"name":...,"notify_msg":...}; with a NUL inside, {"lw":{"name":base64,"text":base64}} besides, and the two cut
 * there.
 */
int lw_note_encode(const struct lw_note *note, char **body)
{
	char *name = strndup(note->name_size != 0 ? note->name : "", note->name_size);
	char *text = strndup(note->text_size != 0 ? note->text : "", note->text_size);
	cJSON *json = cJSON_CreateObject(), *ours;
	bool whole = name != NULL && text != NULL && json != NULL;

	if (whole && !lw_note_is_plain(note)) {
		ours = cJSON_AddObjectToObject(json, "lw");
		whole = ours != NULL && add_exact(ours, "name", note->name, note->name_size) &&
			add_exact(ours, "text", note->text, note->text_size);
	}
	whole = whole && cJSON_AddStringToObject(json, "name", name) != NULL &&
		cJSON_AddStringToObject(json, "notify_msg", text) != NULL;
	free(name);
	free(text);
	if (!whole) {
		cJSON_Delete(json);
		return -ENOMEM;
	}
	return lw_json_text(json, body);
}

/* A received text: as it stands in the document, or, where that can't hold it, in words of letters. */
struct text {
	const char *chars;
	size_t length;
	bool exact; /* base64 */
};

static int find_text(const cJSON *json, const char *key, const char *exact_key, struct text *out)
{
	const cJSON *exact = lw_json_field(lw_json_field(json, "lw"), exact_key), *plain = lw_json_field(json, key);

	if (!cJSON_IsString(plain) || (exact != NULL && !cJSON_IsString(exact)))
		return -EPROTO;
	out->exact = exact != NULL;
	out->chars = out->exact ? exact->valuestring : plain->valuestring;
	out->length = strlen(out->chars);
	return 0;
}

/* Copies the bytes and a NUL to where there is room for them. */
static int copy_text(const struct text *text, char *to, size_t *size)
{
	int error = 0;

	*size = text->length;
	if (text->exact)
		error = lw_base64_decode(text->chars, text->length, to, size);
	else
		memcpy(to, text->chars, text->length);
	if (error == 0)
		to[*size] = '\0';
	return error;
}

static int read_note(const cJSON *json, size_t head, struct lw_note **out)
{
	struct text name, text;
	struct lw_note *note;
	char *memory, *bytes;
	int error = find_text(json, "name", "name", &name);

	if (error == 0)
		error = find_text(json, "notify_msg", "text", &text);
	if (error != 0)
		return error;
	memory = malloc(head + sizeof(*note) + name.length + text.length + 2);
	if (memory == NULL)
		return -ENOMEM;
	note = (struct lw_note *)(void *)(memory + head);
	bytes = (char *)(note + 1);
	note->name = bytes;
	note->text = bytes + name.length + 1;
	error = copy_text(&name, bytes, &note->name_size);
	if (error == 0)
		error = copy_text(&text, bytes + name.length + 1, &note->text_size);
	if (error != 0) {
		free(memory);
		return error;
	}
	*out = note;
	return 0; /* cppcheck-suppress memleak ; the note is inside */
}

int lw_note_decode(const char *body, size_t size, size_t head, struct lw_note **out)
{
	const struct lw_why nobody = {.size = 0};
	cJSON *json;
	int error = lw_json_read(body, size, &json, &nobody);

	if (error != 0)
		return error;
	error = read_note(json, head, out);
	cJSON_Delete(json);
	return error;
}
