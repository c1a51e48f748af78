/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <lanewise/types.h>

#include "common/fake.h"
#include "meta/ctrl.h"
#include "meta/descriptor.h"
#include "meta/frame.h"

struct test_fake {
	struct lw_ctrl *ctrl;
	int listen_fd;
	uint16_t port;
	char name[64];
};

static int serve(void *arg, int type, const char *body, size_t size, char **reply, size_t *reply_size)
{
	struct lw_desc_buffer buffer = {.addr = TEST_FAKE_ADDR, .length = TEST_FAKE_LENGTH, .access = LW_ACCESS_REMOTE};
	const struct test_fake *fake = arg;
	struct lw_desc desc = {
		.protocol = "tcp", .tcp_port = fake->port, .tcp_version = 2, .buffer_count = 1, .buffers = &buffer};

	(void)body;
	(void)size;
	if (type != LW_FRAME_METADATA)
		return -EPROTO;
	snprintf(desc.name, sizeof(desc.name), "%s", fake->name);
	snprintf(buffer.name, sizeof(buffer.name), "%s", fake->name);
	return lw_desc_encode(&desc, reply, reply_size);
}

struct test_fake *test_fake_open(void)
{
	struct lw_ctrl_opts opts = {.port_min = 30001,
				    .port_max = 32000,
				    .max_frame = 1 << 20,
				    .max_clients = 8,
				    .timeout_ms = 5000,
				    .serve = serve};
	struct sockaddr_in *in = (struct sockaddr_in *)&opts.bind;
	struct test_fake *fake = calloc(1, sizeof(*fake));

	assert_non_null(fake);
	opts.arg = fake;
	in->sin_family = AF_INET;
	in->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_int_equal(lw_listen_random(&opts.bind, 30001, 32000, 64, &fake->listen_fd, &fake->port), 0);
	assert_int_equal(lw_ctrl_open(&opts, &fake->ctrl), 0);
	snprintf(fake->name, sizeof(fake->name), "127.0.0.1:%u", lw_ctrl_port(fake->ctrl));
	return fake;
}

void test_fake_close(struct test_fake *fake)
{
	lw_ctrl_close(fake->ctrl);
	close(fake->listen_fd);
	free(fake);
}

const char *test_fake_name(const struct test_fake *fake)
{
	return fake->name;
}

int test_fake_listener(const struct test_fake *fake)
{
	return fake->listen_fd;
}
