/* SPDX-License-Identifier: Apache-2.0 */
/* lwbench measures and validates transfers. See README.md. */
#include <stdio.h>
#include <string.h>

#include "apps/common/host.h"
#include "apps/lwbench/commands.h"
#include "apps/lwbench/flags.h"
#include "apps/lwbench/options.h"

static const char usage[] =
	"lwbench measures and validates transfers between two engines.\n"
	"\n"
	"  lwbench target [options]                   offers memory; run this first\n"
	"  lwbench initiator --target NAME [options]  moves bytes; NAME is what the target printed\n"
	"  lwbench null [options]                     an initiator on the null driver: the engine's own cost\n"
	"  lwbench raw [options]                      two processes on a plain TCP connection, for comparison\n"
	"\n"
	"Sizes take k, m, g, t (powers of 1,024). GB/s are 10^9 bytes a second.\n"
	"\n"
	"target and initiator\n"
	"  --listen HOST         address that peers reach this engine under (127.0.0.1); with a metadata store its "
	"name\n"
	"                        there (the address and port; --set address=HOST is the address then)\n"
	"  --buffer-size SIZE    memory to register (256m)\n"
	"  --workers N           worker threads\n"
	"  --lanes N             connections of one worker to one peer\n"
	"  --poll MODE           busy, adaptive or caller; with busy the initiator's threads spin too\n"
	"  --set NAME=VALUE      any setting of the engine; may be repeated\n"
	"  --duration S          seconds; the target runs until SIGINT or SIGTERM without it (initiator: 5)\n"
	"  --json [FILE]         results as one JSON object; target: to standard output, without a FILE;\n"
	"                        initiator and raw: to FILE, '-' is standard output (tables then go to stderr)\n"
	"\n"
	"initiator, null, raw\n"
	"  --op read|write       (write)\n"
	"  --block-size LIST     bytes of a request: 64k, or 4k,64k,1m, or 4k-4m in steps of four times (64k)\n"
	"  --batch N             requests of a batch (16)\n"
	"  --depth N             batches under way of one thread (4)\n"
	"  --count N             requests of each thread, rounded up to whole batches, instead of --duration\n"
	"  --pin                 bind each thread to a CPU of its own, the last ones first; raw: one side on the\n"
	"                        first CPU, the other on the last\n"
	"\n"
	"initiator, null\n"
	"  --threads N           application threads, each with its own part of the memory (1)\n"
	"  --rate N              requests a second of each thread; latency then counts from the intended start\n"
	"  --priority CLASS      of all requests: foreground or bulk (foreground)\n"
	"  --validate            write random bytes, read them back into cleared memory, compare\n"
	"  --seed N              of the random bytes\n"
	"  --progress            a line each second on stderr, also when that is no terminal\n"
	"  --first               also time the opening of the target and the first request to it\n"
	"\n"
	"raw\n"
	"  --wait HOW            without bytes or room: poll sleeps in poll(2), spin calls again, block: blocking "
	"calls (poll)\n"
	"  --gather N            blocks a call, 1 to 64 (1)\n"
	"\n"
	"Flags without a command, with one or two dashes and = or a blank, are those of transfer_engine_bench; its "
	"lines are\n"
	"then printed on stderr, too. A link called transfer_engine_bench or transfer_engine_validator needs none.\n"
	"  --mode=initiator|target --segment_id=NAME --local_server_name=HOST --metadata_server=P2PHANDSHAKE\n"
	"  --operation=read|write --protocol=NAME --block_size=65536 --batch_size=128 --threads=12 --duration=10\n"
	"  --buffer_size=1073741824 --report_unit=GB|GiB|Gb|MB|MiB|Mb|KB|KiB|Kb --report_precision=2\n"
	"  --validate            as transfer_engine_validator: write, read back, compare\n"
	"  --nic_priority_matrix=FILE; without effect here: --device_name --auto_discovery --backend --use_vram "
	"--init_mem\n"
	"  --gpu_id\n"
	"\n"
	"Exit: 0 all well; 1 transfers failed or data was wrong; 2 wrong usage; 3 engine or target can't be opened;\n"
	"with flags alone 1 for all but the first.\n";

int main(int argc, char **argv)
{
	struct options options;
	int rc;

	if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
		fputs(usage, stdout);
		return EXIT_OK;
	}
	if (argc == 2 && strcmp(argv[1], "--version") == 0) {
		printf("lwbench %s, library %s\n", LW_VERSION_STRING, lw_version_string());
		return EXIT_OK;
	}
	if (flags_meant(argc, argv)) {
		rc = flags_parse(&options, argc, argv);
	} else if (argc < 2) {
		fputs(usage, stderr);
		return EXIT_USAGE;
	} else {
		rc = options_parse(&options, argc, argv);
	}
	if (rc == EXIT_OK)
		fputs(usage, stdout);
	if (rc >= 0) {
		options_free(&options);
		return rc;
	}
	if (options.command != COMMAND_RAW) /* both processes of raw just end */
		app_signals_block();
	switch (options.command) {
	case COMMAND_TARGET:
		rc = target_run(&options);
		break;
	case COMMAND_INITIATOR:
		rc = initiator_run(&options);
		break;
	case COMMAND_RAW:
		rc = raw_run(&options);
		break;
	}
	if (options.classic && rc != EXIT_OK)
		rc = EXIT_FAILED; /* the reference knows no others */
	options_free(&options);
	return rc;
}
