/* SPDX-License-Identifier: Apache-2.0 */
/* The three ways to a priority matrix, and the report of the topology. */
#include "lib/topology.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "lib/engine.h"
#include "lib/error.h"
#include "lib/log.h"
#include "meta/json.h"
#include "meta/topology.h"

#define WHY_BYTES 320

/* The whole file; the caller frees *out. Neither a fifo nor an endless device stalls it. */
static int read_file(const char *file, char **out, size_t *out_length)
{
	char *text = malloc(LW_MATRIX_BYTES + 1);
	size_t length = 0;
	ssize_t n = 1;
	int fd, ret;

	if (text == NULL)
		return lw_fail(-ENOMEM, "no memory to read %s", file);
	fd = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0) {
		ret = errno == ENOENT || errno == ENOTDIR ? -ENOENT
		      : errno == EACCES || errno == EPERM ? -EACCES
							  : -EIO;
		lw_fail(ret, "the topology_file %s can't be opened: %s", file, strerrordesc_np(errno));
		goto free_text;
	}
	while (n != 0 && length <= LW_MATRIX_BYTES) {
		n = read(fd, text + length, LW_MATRIX_BYTES + 1 - length);
		if (n < 0 && errno != EINTR) {
			ret = lw_fail(errno == EISDIR ? -EINVAL : -EIO, "the topology_file %s can't be read: %s", file,
				      strerrordesc_np(errno));
			goto close_fd;
		}
		length += n > 0 ? (size_t)n : 0;
	}
	close(fd);
	*out = text;
	*out_length = length;
	return 0;

close_fd:
	close(fd);
free_text:
	free(text);
	return ret;
}

static int from_file(const char *file, struct lw_matrix **out)
{
	char *text = NULL, why[WHY_BYTES];
	size_t length = 0;
	int ret = read_file(file, &text, &length);

	if (ret != 0)
		return ret;
	ret = lw_matrix_parse(text, length, out, why, sizeof(why));
	free(text);
	if (ret == -EPROTO)
		return lw_fail(-EINVAL, "the topology_file %s: %s", file, why);
	return ret == 0 ? 0 : lw_fail(ret, "no memory for the topology_file %s", file);
}

int lw_topology_given(const struct lw_config *config, struct lw_matrix **out)
{
	struct lw_matrix *matrix = NULL;
	char why[WHY_BYTES];
	int ret = 0;

	if (config->topology[0] != '\0') {
		ret = lw_matrix_parse(config->topology, strlen(config->topology), &matrix, why, sizeof(why));
		if (ret == -EPROTO)
			return lw_fail(-EINVAL, "the setting topology: %s", why);
		if (ret != 0)
			return lw_fail(ret, "no memory for the setting topology");
	} else if (config->topology_file[0] != '\0') {
		ret = from_file(config->topology_file, &matrix);
		if (ret != 0 && ret != -ENOMEM && lw_config_source(config, "topology_file") == LW_SOURCE_ENV) {
			lw_log(LW_LOG_WARNING, "%s; the environment names it; the topology is discovered instead",
			       lw_last_error());
			ret = 0;
		}
	}
	if (ret == 0)
		*out = matrix;
	return ret;
}

/* The matrix of the report: the engine's, or made of what was found. made is to be emptied afterwards. */
static int report_matrix(const struct lw_engine *engine, const struct lw_topology *topology, struct lw_matrix *made,
			 const struct lw_matrix **out, const char **source)
{
	if (engine != NULL && engine->matrix != NULL) {
		*out = engine->matrix;
		*source = engine->matrix_set                   ? "set"
			  : engine->config.topology[0] != '\0' ? "topology"
							       : "topology_file";
		return 0;
	}
	*out = made;
	*source = "discovered";
	return lw_topology_matrix(topology, made);
}

static int report(struct lw_engine *engine, char **out)
{
	const struct lw_topology_opts opts = {.hcas = getenv("MC_TE_FILTERS")};
	struct lw_matrix *made = calloc(1, sizeof(*made));
	const struct lw_matrix *matrix = NULL;
	struct lw_topology *topology = NULL;
	const char *source = NULL;
	cJSON *json = NULL;

	if (made != NULL && lw_topology_discover(&opts, &topology) == 0) {
		if (engine != NULL)
			pthread_mutex_lock(&engine->lock); /* the matrix stays until it is written */
		if (report_matrix(engine, topology, made, &matrix, &source) == 0)
			json = lw_topology_write(topology, matrix, source);
		if (engine != NULL)
			pthread_mutex_unlock(&engine->lock);
	}
	lw_topology_free(topology);
	lw_matrix_free(made);
	if (lw_json_text(json, out) != 0)
		return lw_fail(-ENOMEM, "no memory for the topology");
	return 0;
}

int lw_topology_json(struct lw_engine *engine, char **out)
{
	int error = 0;

	if (out == NULL)
		return lw_fail(-EINVAL, "out must not be NULL");
	if (engine != NULL)
		error = lw_engine_enter(engine);
	if (error != 0)
		return error;
	error = report(engine, out);
	if (engine != NULL)
		lw_engine_leave(engine);
	return error;
}

int lw_topology_set(struct lw_engine *engine, const char *json)
{
	struct lw_matrix *matrix = NULL, *old;
	char why[WHY_BYTES];
	int error = lw_engine_enter(engine);

	if (error != 0)
		return error;
	if (json != NULL)
		error = lw_matrix_parse(json, strnlen(json, LW_MATRIX_BYTES + 1), &matrix, why, sizeof(why));
	if (error != 0) {
		error = error == -EPROTO ? lw_fail(-EINVAL, "the topology is no priority matrix: %s", why)
					 : lw_fail(error, "no memory for the topology");
	} else {
		pthread_mutex_lock(&engine->lock);
		old = engine->matrix;
		engine->matrix = matrix;
		engine->matrix_set = json != NULL;
		pthread_mutex_unlock(&engine->lock);
		lw_matrix_free(old);
	}
	lw_engine_leave(engine);
	return error;
}
