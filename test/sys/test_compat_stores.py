# SPDX-License-Identifier: Apache-2.0
"""test/compat/test_stores over each kind of metadata store, which is started, frozen, stopped and restarted for it. Run by
test_compat_stores.sh."""

import os
import subprocess
import sys
import threading

from stores import ENVIRONMENT, Etcd, Http, Lwmeta, Redis, StrictHttp, missing

PROGRAM = os.path.join(os.environ["LW_BUILD_DIR"], "test/compat/test_stores")


def serve(store, what):
    """Does what the program asks for. Whether this store can."""
    verb, *arguments = what.split()
    if verb == "behave":
        if not isinstance(store, Http) or isinstance(store, Lwmeta):
            return False
        store.write("behave", "".join(arguments))
    else:
        {"freeze": store.freeze, "thaw": store.thaw, "stop": store.stop, "restart": store.start}[verb]()
    return True


def run(kind, results):
    store = kind()
    lines = []
    process = subprocess.Popen([PROGRAM, store.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT)  # fmt: skip
    try:
        for line in process.stdout:
            lines.append(line)
            if line.startswith("do: "):
                process.stdin.write("yes\n" if serve(store, line[4:]) else "no\n")
                process.stdin.flush()
        results[kind] = (process.wait(), "".join(lines))
    finally:
        process.kill()
        store.close()


def main():
    kinds = (Etcd, Redis, Lwmeta, Http, StrictHttp)
    results, left_out = {}, {kind: missing(kind) for kind in kinds}
    threads = [threading.Thread(target=run, args=(kind, results)) for kind in kinds if not left_out[kind]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failed = 0
    for kind in kinds:
        if left_out[kind]:
            print(f"{kind.__name__} is left out, since there is no {', '.join(left_out[kind])}")
            continue
        status, text = results.get(kind, (1, "the test ended early\n"))
        failed += status != 0
        if status != 0:
            print(text)
        print(f"{kind.__name__}: {'failed' if status else 'ok, ' + str(text.count('       OK')) + ' tests'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
