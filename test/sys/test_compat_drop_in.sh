#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A program that was linked with a libtransfer_engine.so without symbol versions, as Mooncake's is, runs with ours put in
# its place.
set -euo pipefail
build=$(realpath "${LW_BUILD_DIR:?}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

if ldd "$build/libtransfer_engine.so" | grep -q -E 'lib(a|t)san'; then
	echo "skipped: a sanitizer's runtime must be loaded first, and this program has none"
	exit 77
fi
# The other library: the same names, and no more.
sed -n '/TRANSFER_ENGINE_C_1 {/,/local:/s/^\t\([a-zA-Z]*\);/void \1(void);void \1(void) {}/p' lib/compat/transfer_engine.map \
	>"$folder/stub.c"
cat >"$folder/host.c" <<'END'
#include <stdio.h>
#include "transfer_engine_c.h"

int main(void)
{
	static char memory[128] = "from here to there";
	transfer_engine_t engine = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "127.0.0.1", 12345, 1);
	struct transfer_request request = {OPCODE_WRITE, memory, LOCAL_SEGMENT, (uint64_t)(uintptr_t)(memory + 64), 64};
	struct transfer_status status = {STATUS_WAITING, 0};
	batch_id_t batch = allocateBatchID(engine, 1);

	if (registerLocalMemory(engine, memory, sizeof(memory), "cpu:0", 1) != 0 ||
	    submitTransfer(engine, batch, &request, 1) != 0)
		return 1;
	while (status.status == STATUS_WAITING)
		getTransferStatus(engine, batch, 0, &status);
	if (status.status != STATUS_COMPLETED || freeBatchID(engine, batch) != 0)
		return 2;
	destroyTransferEngine(engine);
	puts(memory + 64);
	return 0;
}
END
cc -shared -fPIC -Wl,-soname,libtransfer_engine.so -o "$folder/libtransfer_engine.so" "$folder/stub.c"
cc -Ilib/compat -o "$folder/host" "$folder/host.c" -L"$folder" -ltransfer_engine
if [ "$(LD_LIBRARY_PATH=$folder timeout 5 "$folder/host" 2>&1)" = "from here to there" ]; then
	echo "the program does not use the library that it was linked with"
	exit 1
fi
said=$(LW_EAL=off LW_HUGEPAGES=off LD_LIBRARY_PATH=$build LD_BIND_NOW=1 timeout 60 "$folder/host")
echo "$said"
[ "$said" = "from here to there" ]
