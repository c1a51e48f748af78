/* SPDX-License-Identifier: Apache-2.0 */
/* The store clients against scripted servers on 127.0.0.1. With the argument "client": see common/store_client.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "common/store_client.h"
#include "meta/store.h"

int main(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], "client") == 0)
		return test_store_client();
	return 0;
}
