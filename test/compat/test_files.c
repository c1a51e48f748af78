/* SPDX-License-Identifier: Apache-2.0 */
/* Segments of files through Mooncake's C header: the whole of its normal way, with the transport "nvmeof". */
#include "compat/host.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BYTES 300000

static void test_transfers_of_a_file_as_of_any_segment(void **state)
{
	char path[] = "/var/tmp/lwXXXXXX", url[64];
	int fd = mkstemp(path), code;
	transfer_engine_t engine = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "", 0, 0);
	unsigned char *memory = malloc(BYTES), *file = malloc(BYTES);
	struct transfer_request requests[3];
	struct transfer_status status;
	segment_id_t segment;
	batch_id_t batch;

	(void)state;
	assert_true(fd >= 0 && ftruncate(fd, BYTES) == 0);
	assert_non_null(engine);
	assert_true(memory != NULL && file != NULL);
	assert_non_null(installTransport(engine, "nvmeof", NULL));
	assert_int_equal(registerLocalMemory(engine, memory, BYTES, "*", 1), 0);
	snprintf(url, sizeof(url), "file:%s", path);
	segment = openSegment(engine, url);
	if (segment <= 0)
		fail_msg("no segment: %s", getTransferEngineError());
	assert_int_equal(openSegment(engine, url), segment);
	for (size_t i = 0; i < BYTES; i++)
		memory[i] = (unsigned char)(i * 7 + i / 251);
	requests[0] = (struct transfer_request){OPCODE_WRITE, memory, segment, 0, 100001};
	requests[1] = (struct transfer_request){OPCODE_WRITE, memory + 100001, segment, 100001, BYTES - 100001};
	requests[2] = (struct transfer_request){OPCODE_WRITE, memory, segment, BYTES - 1, 2}; /* one byte too many */
	batch = allocateBatchID(engine, 3);
	code = submitTransfer(engine, batch, requests, 3);
	assert_int_equal(code, 0);
	for (size_t i = 0; i < 3; i++) {
		status = host_wait(engine, batch, i);
		assert_int_equal(status.status, i < 2 ? STATUS_COMPLETED : STATUS_FAILED);
		assert_int_equal(status.transferred_bytes, i < 2 ? requests[i].length : 0);
	}
	assert_int_equal(freeBatchID(engine, batch), 0);
	assert_int_equal(pread(fd, file, BYTES, 0), BYTES);
	assert_memory_equal(file, memory, BYTES);
	memset(memory, 0, BYTES);
	assert_int_equal(host_transfer(engine, OPCODE_READ, memory + 1, segment, 1, BYTES - 1).status,
			 STATUS_COMPLETED);
	assert_int_equal(memory[0], 0);
	assert_memory_equal(file + 1, memory + 1, BYTES - 1);
	assert_int_equal(closeSegment(engine, segment), 0);
	assert_true(openSegment(engine, "file:/nowhere/kv.bin") < 0);
	assert_non_null(strstr(getTransferEngineError(), "/nowhere/kv.bin"));
	destroyTransferEngine(engine);
	free(memory);
	free(file);
	close(fd);
	unlink(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_transfers_of_a_file_as_of_any_segment),
	};

	host_quiet();
	return cmocka_run_group_tests_name("files", tests, NULL, NULL);
}
